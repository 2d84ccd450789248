// Opens pages in a browser and checks them. Usage: node browser.mjs MODULES CHECK ARGUMENT...
// MODULES is the folder with the packages of crates/page/web. Prints what it saw as JSON, or fails.
import { createRequire } from "node:module";
import { spawn } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { resolve } from "node:path";
import { strict as assert } from "node:assert";

const [modules, check, ...rest] = process.argv.slice(2);
const require = createRequire(`${resolve(modules)}/`);
const { chromium } = require("playwright-core");

/** Every way in which a page could do something that it must not. */
function watch(page) {
  const seen = { dialogs: [], errors: [], requests: [] };
  page.on("dialog", (dialog) => { seen.dialogs.push(dialog.message()); dialog.dismiss(); });
  page.on("console", (message) => { if (["error", "warning"].includes(message.type())) seen.errors.push(message.text()); });
  page.on("pageerror", (error) => seen.errors.push(String(error.stack)));
  page.on("request", (request) => seen.requests.push(request.url()));
  return seen;
}

async function axe(page, where) {
  // The policy of the page forbids other scripts; the debugger may run one.
  const source = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
  await page.evaluate(source);
  const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const serious = found.violations.filter(({ impact }) => ["serious", "critical"].includes(impact));
  assert.deepEqual(serious.map(({ id, nodes }) => `${where}: ${id} ${nodes[0].html.slice(0, 200)} ${nodes[0].failureSummary}`), []);
}

const text = (page, selector) => page.locator(selector).first().innerText();

/** Every view of a usual page: by mouse, by keyboard, by a link; light and dark, desktop and phone. */
async function views(browser, [file, shots]) {
  const page = await browser.newPage({ viewport: { width: 1400, height: 900 } });
  const seen = watch(page);
  const url = `file://${file}`;
  await page.goto(url);
  await page.waitForSelector("[role=grid] [role=row] .id");
  await axe(page, "table");
  // Needs you comes first, then what went wrong.
  const heads = await page.locator(".triage h2").allInnerTexts();
  assert.match(heads[0], /^Needs you/);
  assert.match(heads[1], /^What went wrong/);
  assert.match(await text(page, ".needs"), /May I delete the old backups\?/);
  assert.match(await text(page, "section:has(#went-wrong)"), /No space left on device/);

  // Sorts by mouse: up, down, and back.
  const first = () => text(page, ".row[aria-rowindex='2'] .c-id");
  const began = await first();
  const head = page.locator("[role=columnheader].c-calls");
  await head.locator("button").click();
  assert.equal(await head.getAttribute("aria-sort"), "ascending");
  await head.locator("button").click();
  assert.equal(await head.getAttribute("aria-sort"), "descending");
  assert.equal(await first(), "loud");
  assert.match(page.url(), /sort=-calls/);
  await head.locator("button").click();
  assert.equal(await first(), began);

  // Filters by choice and by text; the address has both.
  await page.getByLabel("Outcome").selectOption("failed");
  assert.equal(await text(page, ".filter [role=status]"), "2 of 6 workers");
  await page.keyboard.press("/");
  await page.keyboard.press("/");
  await page.locator("#search").fill("disk is full");
  assert.match(page.url(), /outcome=failed/);
  await page.getByRole("button", { name: "Clear" }).click();
  assert.equal(await text(page, ".filter [role=status]"), "6 workers");
  await page.locator("#search").fill("nothing has this");
  assert.equal(await text(page, ".list .calm"), "No worker matches.");
  await page.getByRole("button", { name: "Clear" }).click();

  // Moves by keyboard, and opens every tab.
  await page.locator(".row[tabindex='0']").focus();
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("End");
  await page.waitForSelector(".panel");
  await page.goto(`${url}#w=full`);
  await page.waitForSelector(".panel .block");
  assert.match(await text(page, ".panel .body"), /Why to look[\s\S]*failed/);
  await page.locator("[role=tab]").first().focus();
  for (const [name, found] of [["Evidence", /\[FAILED\]/], ["Calls", /No space left on device/], ["Changes", /\+two/], ["Compare", /Compare with/]]) {
    await page.keyboard.press("ArrowRight");
    await page.waitForSelector(`[role=tab][aria-selected=true]:text("${name}")`);
    assert.match(await text(page, ".panel .body"), found, name);
    await axe(page, name);
  }
  await page.getByLabel("Compare with").selectOption("loud");
  await page.waitForSelector(".panel table.facts");
  assert.match(await text(page, ".panel .body"), /Calls only of loud/);
  await page.keyboard.press("Escape");
  await page.waitForSelector(".panel", { state: "detached" });

  // The failed call is open, the other one folded; a search within finds an output.
  await page.goto(`${url}#w=full&panel=calls`);
  await page.waitForSelector(".calls li");
  assert.deepEqual(await page.locator(".calls details").evaluateAll((all) => all.map(({ open }) => open)), [false, true]);
  await page.getByLabel("Search in calls").fill("space left");
  assert.equal(await page.locator(".calls li").count(), 1);
  assert.match(await text(page, ".panel .origin"), /swarmletfs log .*full[\s\S]*workers\/full\/tool_calls/);

  // A link shows what its sender saw, and the browser goes back.
  const other = await browser.newPage({ viewport: { width: 1400, height: 900 } });
  await other.goto(`${url}#outcome=failed&w=full&panel=calls&call=2&view=timeline&sort=title`);
  await other.waitForSelector("#call-2.selected");
  assert.equal(await other.locator(".views [aria-pressed=true]").innerText(), "Timeline");
  assert.equal(await other.locator(".lane").count(), 2);
  await other.locator(".lane").last().click();
  await other.goBack();
  await other.waitForSelector(".panel:has-text('full')");
  await other.close();

  // The timeline: children under their parents, zoom by keyboard, select.
  await page.goto(`${url}#view=timeline`);
  await page.waitForSelector(".lane svg .tick.failed");
  const names = await page.locator(".lane .name .id").allInnerTexts();
  assert.equal(names.indexOf("child"), names.indexOf("asks") + 1, String(names));
  const bar = () => page.locator(".lane .bar").first().getAttribute("width");
  const before = Number(await bar());
  await page.locator(".lanes").focus();
  await page.keyboard.press("+");
  await page.waitForFunction((before) => Number(document.querySelector(".lane .bar").getAttribute("width")) !== before, before);
  await axe(page, "timeline");
  await page.goto(`${url}#view=pictures`);
  await page.waitForSelector(".bars rect");
  assert.match(await text(page, "figure:has-text('by tool')"), /Bash[\s\S]*1 failed/);
  await axe(page, "pictures");

  for (const [name, width, height, colorScheme, hash] of [
    ["desktop-light", 1400, 900, "light", "#w=full"], ["desktop-dark", 1400, 900, "dark", "#view=timeline"],
    ["phone-light", 390, 800, "light", ""], ["phone-dark", 390, 800, "dark", "#w=full&panel=evidence"],
  ]) {
    const shot = await browser.newPage({ viewport: { width, height }, colorScheme });
    await shot.goto(`${url}${hash}`);
    await shot.waitForSelector(hash.startsWith("#w=") ? ".panel .body > *" : "[role=grid], .lanes");
    assert.equal(await shot.evaluate(() => document.documentElement.scrollWidth <= innerWidth), true, `${name} scrolls sideways`);
    await axe(shot, name);
    if (shots) await shot.screenshot({ path: `${shots}/${name}.png` });
    await shot.close();
  }
  // On paper, the rows are not cut to what is in sight.
  await page.goto(url);
  await page.waitForSelector("[role=grid] .row");
  await page.emulateMedia({ media: "print" });
  await page.waitForFunction(() => document.querySelectorAll(".row").length === 6);
  assert.deepEqual(seen.requests.filter((address) => !address.startsWith("file://")), []);
  return seen;
}

/** Opens everything in a page of hostile texts. */
async function hostile(browser, [file]) {
  const page = await browser.newPage({ viewport: { width: 1400, height: 900 } });
  const seen = watch(page);
  const url = `file://${file}`;
  await page.goto(url);
  await page.waitForSelector("[role=grid] .row");
  const ids = await page.evaluate(() => document.querySelectorAll(".row").length);
  for (let at = 0; at < ids; at++) {
    await page.locator(".row").nth(at).click();
    for (const tab of ["About", "Evidence", "Calls", "Changes", "Compare"]) {
      await page.getByRole("tab", { name: tab }).click();
      await page.waitForFunction(() => !document.querySelector(".panel .body")?.textContent.startsWith("reading"));
      await page.evaluate(() => document.querySelectorAll(".calls details").forEach((call) => { call.open = true; }));
    }
  }
  for (const view of ["Timeline", "Pictures", "Table"]) await page.getByRole("button", { name: view, exact: true }).click();
  const state = await page.evaluate(() => ({
    scripts: document.querySelectorAll("script").length,
    foreign: document.querySelectorAll("#page img, #page iframe, #page script, #page object, #page base, #page meta, #page [onerror], #page [onload], #page [style*=url]").length,
    ran: window.ran ?? null,
    // Characters that reorder or hide text.
    bidi: /[\u202a-\u202e\u2066-\u2069\u200b\u200e\u200f]/.test(document.getElementById("page").innerText),
    sideways: document.documentElement.scrollWidth > innerWidth,
  }));
  assert.deepEqual(state, { scripts: 4, foreign: 0, ran: null, bidi: false, sideways: false });
  return seen;
}

/** Follows a server: a change appears, the server restarts, the token is asked for. */
async function live(browser, [program, store]) {
  const token = "a-token-of-this-test";
  let server;
  const start = (address) => new Promise((done, fail) => {
    const environment = { ...process.env, SWARMLETFS_TOKEN: token };
    server = spawn(program, ["serve", "-q", "--no-cache", "--store", store, "--http", address], { env: environment, stdio: ["ignore", "ignore", "pipe"] });
    server.on("exit", (code) => fail(new Error(`the server ended with ${code}`)));
    let said = "";
    server.stderr.on("data", (data) => {
      said += data;
      const address = said.match(/serving at http:\/\/(\S+)\//);
      if (address) done(address[1]);
    });
  });
  const stop = () => new Promise((done) => { server.removeAllListeners("exit"); server.on("exit", done); server.kill(); });
  try {
    const address = await start("127.0.0.1:0");
    const context = await browser.newContext({ permissions: ["notifications"] });
    const page = await context.newPage();
    await page.addInitScript(() => { window.notes = []; window.Notification = class { static permission = "granted"; constructor(title) { window.notes.push(title); } }; });
    const seen = watch(page);
    // Without the token there is only the question for it.
    await page.goto(`http://${address}/`);
    await page.getByLabel("Token").fill("wrong");
    await page.getByRole("button", { name: "Open" }).click();
    await page.waitForSelector("text=The token is missing or wrong");
    seen.errors.splice(0);
    await page.goto(`http://${address}/#token=${token}&w=child`);
    await page.reload();
    await page.waitForSelector("[role=grid] .row");
    assert.equal(page.url(), `http://${address}/#w=child`);
    await page.waitForSelector(".panel .body > *");
    await page.waitForSelector("text=● live");
    await axe(page, "live");
    // A worker fails: its row, its panel, the sums and the title follow within two seconds.
    const rows = await page.locator(".row").count();
    const changed = performance.now();
    writeFileSync(`${store}/workers/child/metadata.json`, JSON.stringify({ worker_id: "child", task: "the child", status: "failed", error: "It broke just now" }));
    await page.waitForSelector("section:has(#went-wrong) :text('It broke just now')");
    const took = performance.now() - changed;
    await page.waitForSelector(".panel .body :text('It broke just now')");
    assert.deepEqual(await page.evaluate(() => window.notes), ["Failed: the child"]);
    mkdirSync(`${store}/workers/fresh`);
    writeFileSync(`${store}/workers/fresh/metadata.json`, JSON.stringify({ task: "a new one", status: "waiting" }));
    await page.waitForFunction((rows) => document.querySelectorAll(".row").length === rows + 1, rows);
    await page.waitForFunction(() => document.title.startsWith("(1) "));
    assert.deepEqual(await page.evaluate(() => window.notes), ["Failed: the child", "Needs you: a new one"]);
    await page.getByRole("button", { name: "Timeline" }).click();
    await page.waitForSelector(".lane");
    await page.getByRole("button", { name: "Table" }).click();
    // The server ends and comes back.
    await stop();
    await page.waitForSelector("text=the server does not answer");
    seen.errors.splice(0);
    writeFileSync(`${store}/workers/fresh/metadata.json`, JSON.stringify({ task: "a new name", status: "waiting" }));
    await start(address);
    await page.waitForSelector(".row :text('a new name')");
    await page.waitForSelector("text=● live");
    seen.errors.splice(0);
    const foreign = seen.requests.filter((url) => !url.startsWith(`http://${address}/`));
    assert.deepEqual(foreign, []);
    assert.ok(seen.requests.every((url) => !url.includes(token)), "the token is in an address");
    // Its stream would break when the server ends.
    await context.close();
    return { ...seen, took_ms: Math.round(took) };
  } finally {
    if (server) await stop();
  }
}

/** Takes the picture of README.md. */
async function picture(browser, [file, out]) {
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 }, colorScheme: "light" });
  const seen = watch(page);
  await page.goto(`file://${file}#w=2026-01-20T01&panel=calls`);
  await page.waitForSelector(".calls details[open] pre");
  await page.screenshot({ path: out });
  return seen;
}

/** Measures a page: time to the first row, and the memory of its script. */
async function speed(browser, [file]) {
  const page = await browser.newPage({ viewport: { width: 1400, height: 900 } });
  const seen = watch(page);
  const began = performance.now();
  await page.goto(`file://${file}`, { waitUntil: "commit" });
  await page.waitForSelector("[role=grid] .row, main.empty");
  const shown = performance.now() - began;
  await page.waitForLoadState("load");
  const session = await page.context().newCDPSession(page);
  await session.send("HeapProfiler.collectGarbage");
  const { usedSize } = await session.send("Runtime.getHeapUsage");
  const rows = await page.locator(".row").count();
  const scrolled = performance.now();
  await page.evaluate(() => { const grid = document.querySelector("[role=grid]"); if (grid) grid.scrollTop = grid.scrollHeight; });
  await page.waitForFunction(() => { const grid = document.querySelector("[role=grid]"); return !grid || [...grid.querySelectorAll(".row")].some((row) => row.getAttribute("aria-rowindex") === grid.getAttribute("aria-rowcount")); });
  return { ...seen, shown_ms: Math.round(shown), rows, heap_mb: Math.round(usedSize / 1e6), to_end_ms: Math.round(performance.now() - scrolled) };
}

const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
try {
  const seen = await { views, hostile, live, picture, speed }[check](browser, rest);
  assert.deepEqual(seen.dialogs, []);
  assert.deepEqual(seen.errors, []);
  console.log(JSON.stringify(seen));
} finally {
  await browser.close();
}
