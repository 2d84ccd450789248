# Mounts a store in a container and shows the mount to the host. Build it in the root of the source tree:
#
#   docker build --file dist/docker/mount.Dockerfile --tag swarmletfs-mount .
#
# A mount needs the device and the capability. AppArmor, where the host has it, forbids mounts in containers. The host
# sees the mount if /mnt/swarm is below a shared mount there, as it is under systemd.
#
#   docker run --rm --device /dev/fuse --cap-drop ALL --cap-add SYS_ADMIN --cap-add DAC_READ_SEARCH \
#       --security-opt apparmor=unconfined --network none \
#       --volume /srv/swarm:/store:ro --volume /mnt:/mnt:rshared swarmletfs-mount
#
# An argument replaces the options below: `swarmletfs-mount --owner alice /store /mnt/swarm`.
FROM rust:1.91-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --profile dist --locked --bin swarmletfs

FROM debian:12-slim
COPY --from=build /src/target/dist/swarmletfs /usr/bin/swarmletfs
# Mounting is for root, or for fusermount3, which would need more of the container.
ENTRYPOINT ["swarmletfs", "mount", "--foreground", "--no-cache", "--allow-other"]
CMD ["--all-owners", "/store", "/mnt/swarm"]
