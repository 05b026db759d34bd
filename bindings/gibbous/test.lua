-- test.lua - gb.test: describe, it and expect, and a count at the end. Our own Lua tests use it.

local gb, native = ...
local test = { ops = native.ops }
gb.test = test

local passed, failed, path = 0, 0, {}

function test.describe(name, fn)
  path[#path + 1] = name
  fn()
  path[#path] = nil
end

-- One case. An error inside fails it, with its message.
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

function Expect:to_be(other)
  if self.value ~= other then fail("expected %s, got %s", show(other), show(self.value)) end
end

function Expect:to_be_truthy()
  if not self.value then fail("expected a true value, got %s", show(self.value)) end
end

-- Numbers within tolerance (absolute plus relative).
function Expect:to_be_near(other, tolerance)
  tolerance = tolerance or 1e-6
  if not (math.abs(self.value - other) <= tolerance * (1 + math.abs(other))) then fail("expected %.9g within %g, got %.9g", other, tolerance, self.value) end
end

-- Shape equal to a list.
function Expect:to_have_shape(...)
  local want = table.concat({ ... }, "x")
  if table.concat(self.value.shape, "x") ~= want then fail("expected shape %s, got %s", want, table.concat(self.value.shape, "x")) end
end

-- A tensor or list whose elements all lie within tolerance (absolute plus relative) of another's; NaN equals NaN.
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

-- The same dtype, shape and bits.
function Expect:to_equal_bits(other)
  local a, b = self.value, other
  if a.dtype ~= b.dtype then fail("expected dtype %s, got %s", b.dtype, a.dtype) end
  if table.concat(a.shape, "x") ~= table.concat(b.shape, "x") then
    fail("expected shape %s, got %s", table.concat(b.shape, "x"), table.concat(a.shape, "x"))
  end
  if not native.same_bits(a, b) then fail("the bits differ:\n%s\n%s", tostring(a), tostring(b)) end
end

-- Calling the value raises an error whose text contains `text`.
function Expect:to_fail(text)
  local ok, message = pcall(self.value)
  if ok then fail("expected an error with '%s', there was none", text or "") end
  if text and not tostring(message):find(text, 1, true) then fail("expected an error with '%s', got: %s", text, tostring(message)) end
end

function test.expect(value) return setmetatable({ value = value }, Expect) end

-- Print the count, in the form that the runner adds up, and end with an error when something failed.
function test.finish()
  print(("%d passed, %d failed"):format(passed, failed))
  local bad = failed
  passed, failed = 0, 0
  if bad > 0 then error("tests failed", 0) end
end
