"use strict";
const key = location.hash.slice(1);
const element = (id) => document.getElementById(id);
const columns = new Map();
let number = 0;

async function post(path, body) {
  const response = await fetch(path, {
    method: "POST",
    headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const value = await response.json();
  if (!response.ok) throw new Error(value.error);
  return value;
}

function show(column, kind, text) {
  const message = document.createElement("div");
  message.className = `message ${kind}`;
  message.textContent = text;
  column.append(message);
  return message;
}

function showMessage(column, message) {
  if (message.reasoning_content) show(column, "thinking", message.reasoning_content);
  if (message.content || !(message.tool_calls || []).length) {
    show(column, message.role, message.content || "(no text)");
  }
  for (const call of message.tool_calls || []) {
    const given = call.function.arguments;
    show(column, "call", `${call.function.name}(${typeof given === "string" ? given : JSON.stringify(given)})`);
  }
}

async function ask(policy, column, text, greedy) {
  show(column, "user", text);
  const waiting = show(column, "thinking", "…");
  try {
    for (const message of await post("answer", { policy, text, greedy })) showMessage(column, message);
  } catch (error) {
    show(column, "error", error.message);
  }
  waiting.remove();
}

element("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = element("text").value;
  element("send").disabled = true;
  await Promise.all([...columns].map(([policy, column]) => ask(policy, column, text, element("greedy").checked)));
  element("send").disabled = false;
});

element("problem").addEventListener("click", async () => {
  await forget();
  const problem = await post("problem", { number: number++ });
  element("text").value = problem.text;
  element("truth").textContent = `Ground truth: ${problem.ground_truth}`;
});

async function forget() {
  await post("forget", {});
  for (const column of columns.values()) column.replaceChildren(column.firstChild);
  element("truth").textContent = "";
}

element("forget").addEventListener("click", forget);

post("policies", {}).then(
  (names) => {
    for (const name of names) {
      const column = document.createElement("section");
      column.append(Object.assign(document.createElement("h2"), { textContent: `${name} policy` }));
      element("policies").append(column);
      columns.set(name, column);
    }
  },
  (error) => show(element("policies"), "error", error.message),
);
