-- test.lua - gb.test: describe, it and expect, and a count at the end. Our own Lua tests use it.

local gb, native = ...
-- gb.test.ops() -> list: The table of ops: rows { name, family, kind, autocast, derivative, signature, doc, where, public }. Example:
-- print(#gb.test.ops())
-- gb.test.public_names() -> list: Every name that recipes can reach, sorted: rows { name =, value =, op = (the row of the op it is, if it is one) }.
-- Example: print(#gb.test.public_names())
-- gb.test.help_entry(what) -> table: What help() knows of a public name, or of a function or class: name, signature, doc, example, errors, and of an
-- op also calls, shapes, dtypes, autocast, derivative; or nil and the nearest name. Example: print(gb.test.help_entry("relu").doc)
-- gb.test.records() -> list: The texts of all records of public functions, then of each its sandbox level (0 none, 1 files, 2 strict), in turn.
-- Example: print(gb.test.records()[1])
local test = { ops = native.ops, public_names = native.public_names, help_entry = native.help_entry, records = native.records }
gb.test = test

local passed, failed, path = 0, 0, {}

-- gb.test.describe(name: string, fn: function): A group of cases. Example: gb.test.describe("sum", function() end)
function test.describe(name, fn)
  path[#path + 1] = name
  fn()
  path[#path] = nil
end

-- gb.test.it(name: string, fn: function): One case. An error inside fails it, with its message. Example: gb.test.it("adds", function()
-- gb.test.expect(1 + 1):to_be(2) end)
function test.it(name, fn)
  local ok, why = xpcall(fn, function(message) return type(message) == "table" and message.failure or debug.traceback(tostring(message), 2) end)
  if ok then passed = passed + 1 return end
  failed = failed + 1
  print(("FAILED  %s: %s\n  %s"):format(table.concat(path, " / "), name, why))
end

local function fail(text, ...)
  error({ failure = text:format(...) .. "\n  " .. debug.traceback("", 3):match("([^\n]*test_[^\n]*)") }, 0)
end

local function show(value) return type(value) == "string" and ("%q"):format(value) or tostring(value) end

local function elements(t)
  if not gb.is_tensor(t) then return t end
  local list = t:detach():reshape(-1):tolist()
  return type(list) == "table" and list or { list }
end

local Expect = {}
Expect.__index = Expect
native.classes.expect = Expect

-- expect:to_be(other): The same value. Example: gb.test.expect(1 + 1):to_be(2)
function Expect:to_be(other)
  if self.value ~= other then fail("expected %s, got %s", show(other), show(self.value)) end
end

-- expect:to_be_truthy(): Neither nil nor false. Example: gb.test.expect(1):to_be_truthy()
function Expect:to_be_truthy()
  if not self.value then fail("expected a true value, got %s", show(self.value)) end
end

-- expect:to_be_near(other: number, tolerance?: number): Numbers within tolerance (absolute plus relative). Example: gb.test.expect(0.1 +
-- 0.2):to_be_near(0.3)
function Expect:to_be_near(other, tolerance)
  tolerance = tolerance or 1e-6
  if gb.is_tensor(self.value) then self.value = self.value:item() end
  if not (math.abs(self.value - other) <= tolerance * (1 + math.abs(other))) then fail("expected %.9g within %g, got %.9g", other, tolerance, self.value) end
end

-- expect:to_have_shape(sizes: ints): Shape equal to a list. Example: gb.test.expect(gb.zeros(2, 3)):to_have_shape(2, 3)
function Expect:to_have_shape(...)
  local want = table.concat({ ... }, "x")
  if table.concat(self.value.shape, "x") ~= want then fail("expected shape %s, got %s", want, table.concat(self.value.shape, "x")) end
end

-- expect:to_be_close(other, tolerance?: number): A tensor or list whose elements all lie within tolerance (absolute plus relative) of another's; NaN
-- equals NaN. Example: gb.test.expect(gb.ones(2)):to_be_close({ 1, 1 })
function Expect:to_be_close(other, tolerance)
  tolerance = tolerance or 1e-6
  local a, b = elements(self.value), elements(other)
  if #a ~= #b then fail("expected %d elements, got %d", #b, #a) end
  for i = 1, #b do
    local same = a[i] == b[i] or (a[i] ~= a[i] and b[i] ~= b[i])
    if not same and not (math.abs(a[i] - b[i]) <= tolerance * (1 + math.abs(b[i]))) then
      fail("element %d: expected %.9g within %g, got %.9g", i, b[i], tolerance, a[i])
    end
  end
end

-- expect:to_equal_bits(other: tensor): The same dtype, shape and bits. Example: gb.test.expect(x):to_equal_bits(x:clone())
function Expect:to_equal_bits(other)
  local a, b = self.value, other
  if a.dtype ~= b.dtype then fail("expected dtype %s, got %s", b.dtype, a.dtype) end
  if table.concat(a.shape, "x") ~= table.concat(b.shape, "x") then
    fail("expected shape %s, got %s", table.concat(b.shape, "x"), table.concat(a.shape, "x"))
  end
  if not native.same_bits(a, b) then fail("the bits differ:\n%s\n%s", tostring(a), tostring(b)) end
end

-- expect:to_fail(text?: string): Calling the value raises an error whose text contains `text`. Example: gb.test.expect(function() error("no")
-- end):to_fail("no")
function Expect:to_fail(text)
  local ok, message = pcall(self.value)
  if ok then fail("expected an error with '%s', there was none", text or "") end
  if text and not tostring(message):find(text, 1, true) then fail("expected an error with '%s', got: %s", text, tostring(message)) end
end

-- gb.test.expect(value) -> expect: What a case expects of a value. Example: gb.test.expect(1 + 1):to_be(2)
function test.expect(value) return setmetatable({ value = value }, Expect) end

-- gb.test.program() -> string: The executable that runs this script: it stands before its own options. Example: print(gb.test.program())
function test.program()
  local first = -1
  while arg[first - 1] do first = first - 1 end
  return arg[first]
end

-- gb.test.finish(): Print the count, in the form that the runner adds up, and end with an error when something failed.
function test.finish()
  print(("%d passed, %d failed"):format(passed, failed))
  local bad = failed
  passed, failed = 0, 0
  if bad > 0 then error("tests failed", 0) end
end
