// A component that is drawn again only when one of its properties changes.
import { Component, createElement } from "preact";
import type { ComponentChild, FunctionComponent } from "preact";

export function memo<P extends object>(draw: FunctionComponent<P>): FunctionComponent<P> {
  class Memo extends Component<P> {
    override shouldComponentUpdate(next: Readonly<P>): boolean {
      const now = this.props as Record<string, unknown>;
      const then = next as Record<string, unknown>;
      return Object.keys({ ...now, ...then }).some((key) => key !== "children" && !Object.is(now[key], then[key]));
    }
    override render(): ComponentChild {
      return createElement(draw as FunctionComponent<object>, this.props);
    }
  }
  return Memo as unknown as FunctionComponent<P>;
}
