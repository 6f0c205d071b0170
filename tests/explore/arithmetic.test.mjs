// Until there are modules: node's runner runs, and takes plain ES modules.
import assert from "node:assert/strict";
import { test } from "node:test";

test("one and one are two", () => assert.equal(1 + 1, 2));
