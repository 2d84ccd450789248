// Runs a session of the Claude Agent SDK that keeps its transcripts in parts.
//
// usage: agent_sdk.mjs SDK CLAUDE PROMPT FOLDER | agent_sdk.mjs SDK CLAUDE PROMPT ENDPOINT BUCKET PREFIX
//   SDK       the module of the SDK
//   CLAUDE    Claude Code
//   FOLDER    the directory for the parts, or
//   ENDPOINT  the S3 server for the parts, with the keys of the environment
//
// A part has the name that the S3 store of sessions among the examples of the SDK gives it.
import { randomBytes } from "node:crypto";
import { mkdir, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { pathToFileURL } from "node:url";

const [sdk, claude, prompt, place, bucket, prefix] = process.argv.slice(2);
const { query } = await import(pathToFileURL(sdk));

async function putInFolder(key, body) {
    await mkdir(dirname(join(place, key)), { recursive: true });
    await writeFile(join(place, key), body);
}

function putInBucket() {
    const { PutObjectCommand, S3Client } = createRequire(sdk)("@aws-sdk/client-s3");
    const client = new S3Client({ endpoint: place, region: "us-east-1", forcePathStyle: true });
    return (key, body) => client.send(new PutObjectCommand({ Bucket: bucket, Key: `${prefix}/${key}`, Body: body }));
}

class SessionParts {
    #last = 0;
    #put = bucket ? putInBucket() : putInFolder;

    async append({ projectKey, sessionId, subpath }, entries) {
        // Parts of one process never have the same time.
        this.#last = Math.max(Date.now(), this.#last + 1);
        const name = `part-${String(this.#last).padStart(13, "0")}-${randomBytes(3).toString("hex")}.jsonl`;
        const folders = [projectKey, sessionId, subpath].filter(Boolean).map(encodeURIComponent);
        const lines = entries.map((entry) => `${JSON.stringify(entry)}\n`);
        await this.#put([...folders, name].join("/"), lines.join(""));
    }

    async load() {
        return null;
    }
}

const session = query({
    prompt,
    options: {
        pathToClaudeCodeExecutable: claude,
        sessionStore: new SessionParts(),
        sessionStoreFlush: "eager",
        settingSources: ["user"],
        cwd: process.cwd(),
        env: process.env,
    },
});
for await (const message of session) {
    if (message.type === "result" || message.subtype === "mirror_error") {
        console.log(JSON.stringify(message));
    }
}
