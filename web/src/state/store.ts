// A value that components watch.
//
//   const count = new Store(0);
//   const shown = useStore(count, (n) => n * 2);   // draws again only when the selection changes
import { useLayoutEffect, useState } from "preact/hooks";

export class Store<T> {
  private listeners = new Set<() => void>();
  value: T;

  constructor(value: T) {
    this.value = value;
  }

  set(value: T): void {
    if (Object.is(value, this.value)) return;
    this.value = value;
    for (const listener of [...this.listeners]) listener();
  }

  update(change: (value: T) => T): void {
    this.set(change(this.value));
  }

  watch(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
}

export function useStore<T, S = T>(store: Store<T>, select: (value: T) => S = (value) => value as unknown as S): S {
  const [, draw] = useState(0);
  const selected = select(store.value);
  // Before the first paint: a reader who types at once must not meet a component that does not listen yet.
  useLayoutEffect(() => {
    let last = selected;
    const check = () => {
      const next = select(store.value);
      if (!Object.is(next, last)) {
        last = next;
        draw((n) => n + 1);
      }
    };
    check();
    return store.watch(check);
  });
  return selected;
}
