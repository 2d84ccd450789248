# Reads a store without a mount: the commands, and the Model Context Protocol. Build it in the root of the source tree:
#
#   docker build --file dist/docker/read.Dockerfile --tag swarmletfs .
#
# It needs no privilege, no device and no network, and writes nothing. The user must be able to read the store.
#
#   docker run --rm --read-only --cap-drop ALL --security-opt no-new-privileges --network none \
#       --user "$(id -u)" --volume /srv/swarm:/store:ro swarmletfs grep 'timeout|refused'
#   docker run --interactive ... swarmletfs mcp
FROM rust:1.91-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --profile dist --locked --bin swarmletfs

# The C library and little else; no shell.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /src/target/dist/swarmletfs /usr/bin/swarmletfs
ENV SWARMLET_STORE=/store
ENTRYPOINT ["/usr/bin/swarmletfs"]
CMD ["cat", "--no-cache", "summary"]
