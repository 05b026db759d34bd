-- test.lua - gb.test: describe, it and expect, and a count at the end. Our own Lua tests use it.

local gb, native = ...
local define, own, private = native.define, native.own, native.private
local format, match, find, concat = string.format, string.match, string.find, table.concat
local traceback = debug and debug.traceback or function(text) return text end

local test = gb.test

test.ops = define("gb.test.ops() -> list: The table of ops: rows { name, family, kind, autocast, derivative, \z
  signature, doc, where, public, aliases }. Example: print(#gb.test.ops())", "none", native.ops)

test.dtypes = define("gb.test.dtypes() -> list: The table of dtypes: rows { name, file }; file is the name in \z
  safetensors files. Example: print(gb.test.dtypes()[1].name)", "none", native.dtypes)

test.public_names = define("gb.test.public_names() -> list: Every name that recipes can reach, sorted: rows { name \z
  =, value =, op = (the row of the op it is, if it is one) }. Example: print(#gb.test.public_names())", "none",
  function() return native.public_names() end)

test.help_entry = define("gb.test.help_entry(what?: any) -> table: What help() knows of a public name, or of a \z
  function or class: name, signature, doc, example, errors, and of an op also calls, shapes, dtypes, autocast, \z
  derivative; or nil and the nearest name. Example: print(gb.test.help_entry(\"relu\").doc)", "none",
  function(what) return native.help_entry(what) end)

test.records = define("gb.test.records() -> list: The texts of all records of public functions, then of each its \z
  sandbox level (0 none, 1 files, 2 strict), in turn. Example: print(gb.test.records()[1])", "none", native.records)

local passed, failed, path = 0, 0, {}

test.describe = define("gb.test.describe(name: string, fn: function): A group of cases. Example: \z
  gb.test.describe(\"sum\", function() end)", "none",
  function(name, fn)
    path[#path + 1] = name
    fn()
    path[#path] = nil
  end)

-- What went wrong, as it is shown: the text of a failed expectation, or the error with its traceback.
local function explain(why)
  local mine = type(why) == "table" and private(why, "failure")
  return mine and mine.text or traceback(tostring(why), 2)
end

test.it = define("gb.test.it(name: string, fn: function): One case. An error inside fails it, with its message. \z
  Example: gb.test.it(\"adds\", function() gb.test.expect(1 + 1):to_be(2) end)", "none", function(name, fn)
  local ok, why = xpcall(fn, explain)
  if ok then passed = passed + 1 return end
  failed = failed + 1
  print(format("FAILED  %s: %s\n  %s", concat(path, " / "), name, tostring(why)))
end)

-- The line of the test is the nearest of a file that is named as one.
local function fail(text, ...)
  local place = match(traceback("", 3), "([^\n]*test_[^\n]*)")
  local message = native.plain_nan(format(text, ...)) .. (place and "\n  " .. place or "")
  error(own(setmetatable({}, { __tostring = function() return message end }), "failure", { text = message }), 0)
end

local function show(value)
  if value ~= value then return "nan" end -- whatever its sign
  return type(value) == "string" and format("%q", value) or tostring(value)
end

local function elements(t)
  if not gb.is_tensor(t) then return t end
  local list = t:detach():reshape(-1):tolist()
  return type(list) == "table" and list or { list }
end

-- What is private of what expect returned: value.
local Expect = { __name = "gb.test.expect" }
Expect.__index = Expect
Expect.__tostring = function() return "what gb.test.expect returned" end
native.classes.expect = Expect

local function value_of(self) return private(self, "expect").value end

-- The tensor that is looked at.
local function tensor_of(self)
  local value = value_of(self)
  if not gb.is_tensor(value) then fail("expected a tensor, got %s", show(value)) end
  return value
end

Expect.to_be = define("expect:to_be(other?: any): The same value. Example: gb.test.expect(1 + 1):to_be(2)", "none",
  function(self, other)
  if value_of(self) ~= other then fail("expected %s, got %s", show(other), show(value_of(self))) end
end)

Expect.to_be_truthy = define("expect:to_be_truthy(): Neither nil nor false. Example: gb.test.expect(1):to_be_truthy()",
  "none", function(self)
  if not value_of(self) then fail("expected a true value, got %s", show(value_of(self))) end
end)

Expect.to_be_near = define("expect:to_be_near(other: number, tolerance: number = 1e-6): Numbers within tolerance \z
  (absolute plus relative). Example: gb.test.expect(0.1 + 0.2):to_be_near(0.3)", "none",
  function(self, other, tolerance)
  local value = value_of(self)
  if gb.is_tensor(value) then value = value:item() end
  if type(value) ~= "number" then fail("expected a number near %.9g, got %s", other, show(value)) end
  if not (math.abs(value - other) <= tolerance * (1 + math.abs(other))) then
    fail("expected %.9g within %g, got %.9g", other, tolerance, value)
  end
end)

Expect.to_have_shape = define("expect:to_have_shape(sizes?: sizes): Shape equal to a list. Example: \z
  gb.test.expect(gb.zeros(2, 3)):to_have_shape(2, 3)",
  "none", function(self, sizes)
    local want, got = concat(sizes or {}, "x"), concat(tensor_of(self).shape, "x")
    if got ~= want then fail("expected shape %s, got %s", want, got) end
  end)

Expect.to_be_close = define("expect:to_be_close(other: any, tolerance: number = 1e-6): A tensor or list whose \z
  elements all lie within tolerance (absolute plus relative) of another's; NaN equals NaN. Example: \z
  gb.test.expect(gb.ones(2)):to_be_close({ 1, 1 })", "none",
  function(self, other, tolerance)
    local a, b = elements(value_of(self)), elements(other)
    if type(a) ~= "table" or type(b) ~= "table" then
      fail("expected tensors or lists, got %s and %s", show(a), show(b))
    end
    if #a ~= #b then fail("expected %d elements, got %d", #b, #a) end
    for i = 1, #b do
      local same = a[i] == b[i] or (a[i] ~= a[i] and b[i] ~= b[i])
      if not same and not (math.abs(a[i] - b[i]) <= tolerance * (1 + math.abs(b[i]))) then
        fail("element %d: expected %.9g within %g, got %.9g", i, b[i], tolerance, a[i])
      end
    end
  end)

Expect.to_equal_bits = define("expect:to_equal_bits(other: tensor): The same dtype, shape and bits. Example: \z
  gb.test.expect(x):to_equal_bits(x:clone())", "none", function(self, other)
  local a, b = tensor_of(self), other
  if a.dtype ~= b.dtype then fail("expected dtype %s, got %s", b.dtype, a.dtype) end
  local got, want = concat(a.shape, "x"), concat(b.shape, "x")
  if got ~= want then fail("expected shape %s, got %s", want, got) end
  if not native.same_bits(a, b) then fail("the bits differ:\n%s\n%s", tostring(a), tostring(b)) end
end)

Expect.to_fail = define("expect:to_fail(text: string = \"\"): Calling the value raises an error whose text contains \z
  `text`. Example: gb.test.expect(function() error(\"no\") end):to_fail(\"no\")", "none", function(self, text)
  local ok, message = pcall(value_of(self))
  if ok then fail("expected an error with '%s', there was none", text) end
  if not find(tostring(message), text, 1, true) then
    fail("expected an error with '%s', got: %s", text, tostring(message))
  end
end)

test.expect = define("gb.test.expect(values...: any) -> expect: What a case expects of a value, the first of those \z
  that are given. Example: gb.test.expect(1 + 1):to_be(2)", "none",
  function(value) return own(setmetatable({ value = value }, Expect), "expect", { value = value }) end)

test.program = define("gb.test.program() -> string: The executable that runs this script: it stands before its own \z
  options. Example: print(gb.test.program())", "none", function()
  local line, first = native.command_line(), -1
  while line[first - 1] do first = first - 1 end
  return line[first]
end)

test.finish = define("gb.test.finish(): Print the count, in the form that the runner adds up, and end with an error \z
  when something failed.", "none",
  function()
    print(format("%d passed, %d failed", passed, failed))
    local bad = failed
    passed, failed = 0, 0
    if bad > 0 then error("tests failed", 0) end
  end)
