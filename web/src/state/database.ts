// Conversations in IndexedDB, one record each. Where the browser allows no storage (a private window, say), everything
// works in memory and `stored` is false.
import type { Conversation } from "./types.ts";

const NAME = "deepinfer";
const TABLE = "conversations";

let opening: Promise<IDBDatabase | null> | null = null;
export let stored = true;

function open(): Promise<IDBDatabase | null> {
  opening ??= new Promise((resolve) => {
    const fail = () => {
      stored = false;
      resolve(null);
    };
    try {
      const request = indexedDB.open(NAME, 1);
      request.onupgradeneeded = () => request.result.createObjectStore(TABLE, { keyPath: "id" });
      request.onsuccess = () => resolve(request.result);
      request.onerror = fail;
      request.onblocked = fail;
    } catch {
      fail();
    }
  });
  return opening;
}

async function run<T>(mode: IDBTransactionMode, work: (table: IDBObjectStore) => IDBRequest<T>): Promise<T | null> {
  const database = await open();
  if (!database) return null;
  return new Promise((resolve) => {
    const fail = () => {
      stored = false;
      resolve(null);
    };
    try {
      const transaction = database.transaction(TABLE, mode);
      const request = work(transaction.objectStore(TABLE));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onerror = fail;
      transaction.onabort = fail;
    } catch {
      fail();
    }
  });
}

export async function loadAll(): Promise<unknown[]> {
  return (await run("readonly", (table) => table.getAll())) ?? [];
}

export async function save(conversation: Conversation): Promise<void> {
  await run("readwrite", (table) => table.put(conversation));
}

export async function remove(id: string): Promise<void> {
  await run("readwrite", (table) => table.delete(id));
}
