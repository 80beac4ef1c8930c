// Uses the types that openapi-typescript makes from the API's description. It is
// compiled, and not run.
import type { components, operations } from "./generated";

type Schemas = components["schemas"];
type Answers<Name extends keyof operations> = operations[Name]["responses"];
type Problem404 = Answers<"get_endpoint">[404]["content"]["application/problem+json"];
type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;

// Every operation answers with one and the same type of problem.
export const problems: [
  Same<Problem404, Schemas["Problem"]>,
  Same<Answers<"accept_event">[409]["content"]["application/problem+json"], Schemas["Problem"]>,
  Same<Answers<"list_endpoints">[200]["content"]["application/json"], Schemas["EndpointPage"]>,
  Same<Schemas["EndpointPage"]["data"][number], Schemas["Endpoint"]>,
] = [true, true, true, true];

export const event: Schemas["NewEvent"] = { type: "order.shipped", data: { order: 7 }, key: "order-7" };
export const batch: operations["accept_event_batch"]["requestBody"]["content"]["application/json"] = [event];
export const endpoint: Schemas["NewEndpoint"] = { url: "https://example.com/", breaker: { enabled: false } };
export const patch: Schemas["EndpointPatch"] = { breaker: { cooldown: "1m" }, filter: null };

export function advice(problem: Schemas["Problem"]): string {
  return problem.code === "not_found" ? problem.detail : problem.title;
}
