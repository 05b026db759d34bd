-- help.lua - help(x) and ? x: what an op, a function, a class or a value is, from the table of ops and from the modules themselves.

local repl = ...
local gb = repl.gb
local type, next, ipairs, rawget, tostring = type, next, ipairs, rawget, tostring
local concat, sort = table.concat, table.sort

local classes = {
  keep = "runs in the dtype it is given",
  lower = "runs in the scope's 16-bit dtype",
  float32 = "computes in float32 and returns float32",
  widest = "casts its inputs to the widest dtype among them",
  banned = "is an error under autocast",
}
local derivatives = { no = "has no gradient", once = "can be differentiated once", twice = "can be differentiated twice" }

-- {==== the index: functions by identity, ops by name ====

local modules = { { "gb", gb }, { "gb.nn.functional", gb.nn.functional }, { "gb.nn", gb.nn }, { "gb.nn.init", gb.nn.init }, { "gb.nn.utils", gb.nn.utils },
  { "gb.amp", gb.amp }, { "gb.optim", gb.optim }, { "gb.optim.lr", gb.optim.lr }, { "gb.data", gb.data }, { "gb.io", gb.io }, { "gb.cuda", gb.cuda } }

local ops, names -- op rows by name; { path, name } by function

-- Made when help is first asked for.
local function make_index()
  if ops then return end
  ops, names = {}, {}
  for _, row in ipairs(gb.test.ops()) do ops[row.name] = row end
  local function add(path, separator, module)
    local keys = {}
    for key in next, module do
      if repl.is_name(key) then keys[#keys + 1] = key end
    end
    sort(keys)
    for _, key in ipairs(keys) do
      local value = rawget(module, key)
      if (type(value) == "function" or type(value) == "table") and not names[value] then names[value] = { path .. separator .. key, key } end
    end
  end
  for _, module in ipairs(modules) do add(module[1], ".", module[2]) end
  add("tensor", ":", repl.methods())
end

-- The full name of a function or class of the library, or nil.
function repl.name_of(value)
  make_index()
  return names[value] and names[value][1]
end

-- The row of the op that a function runs, or nil.
local function op_of(value)
  local name = names[value] and names[value][2]
  return name and (ops[name] or ops[name:gsub("_$", "")])
end

-- The names of the options that a function takes, or nil.
function repl.options_of(value)
  make_index()
  local row = value ~= nil and op_of(value)
  local signature = row and row.signature:match("^(.-)%->")
  local part = signature and signature:match(";(.*)$")
  if not part then return nil end
  local list = {}
  for name in part:gmatch("([%a_][%w_]*)%s*:") do list[#list + 1] = name end
  return list
end

-- ====}

-- {==== texts ====

-- Where an op is found: gb.conv2d, F.conv2d, x:conv2d().
local function places(name)
  local list = {}
  if rawget(gb, name) then list[#list + 1] = "gb." .. name end
  if rawget(gb.nn.functional, name) then list[#list + 1] = "F." .. name end
  if repl.methods()[name] then list[#list + 1] = "x:" .. name end
  if repl.methods()[name .. "_"] then list[#list + 1] = "x:" .. name .. "_ (in place)" end
  return concat(list, ", ")
end

-- The signature of an op as it is called: named options in a table behind the positional arguments.
local function call_text(row)
  local arguments, results = row.signature:match("^(.-)%s*%->%s*(.*)$")
  local positional, options = arguments:match("^(.-)%s*;%s*(.*)$")
  positional = positional or arguments
  if options then positional = positional .. (positional == "" and "" or ", ") .. "{ " .. options:gsub(": (%a+) = ", ": %1 = ") .. " }" end
  return ("%s(%s) -> %s"):format(row.name, positional, (results:gsub("%s*;.*$", "")))
end

local function op_text(row)
  local lines = { call_text(row), "", "  " .. row.doc, "" }
  lines[#lines + 1] = "  found as    " .. places(row.name)
  lines[#lines + 1] = ("  autocast    %s: %s"):format(row.autocast, classes[row.autocast])
  lines[#lines + 1] = "  gradient    " .. derivatives[row.derivative]
  return concat(lines, "\n")
end

-- The names in a module or class, in lines of the terminal's width.
local function names_text(value)
  local list = {}
  for key, field in next, value do
    if repl.is_name(key) and key:sub(1, 1) ~= "_" then list[#list + 1] = type(field) == "function" and key .. "()" or key end
  end
  sort(list)
  local lines, line = {}, "  "
  for _, name in ipairs(list) do
    if #line + #name + 1 > repl.width() then
      lines[#lines + 1] = line
      line = "  "
    end
    line = line .. name .. " "
  end
  lines[#lines + 1] = line
  return concat(lines, "\n")
end

-- Where a Lua function was written, with the comment above it when its file can be read.
local function source_text(value)
  local info = debug.getinfo(value, "S")
  if info.what == "C" then return "a function in C" end
  local file = info.source:sub(1, 1) == "@" and io.open(info.source:sub(2), "r")
  local comment, count = {}, 0
  if file then
    for line in file:lines() do
      count = count + 1
      if count >= info.linedefined then break end
      local text = line:match("^%s*%-%-+%s?(.*)$")
      if text then comment[#comment + 1] = "  " .. text else comment = {} end
    end
    file:close()
  end
  return concat({ ("a Lua function, %s:%d"):format(info.short_src, info.linedefined), table.unpack(comment) }, "\n")
end

local general = [[
help(x) or ? x   what x is: an op, a function, a class, a tensor, or a name in quotes
:time code       run it and show how long it took, devices synchronised
:mem             bytes in tensors by kind, and in Lua
:modes           gradients, autocast, precision, threads, devices
:quit            leave; so does Ctrl-D
Tab              completes names, methods, options of a call and files; Ctrl-R searches what was entered before
_                the last result; the prompts are _PROMPT and _PROMPT2
Ctrl-C           stops what runs; at the prompt it clears the line
gb               the library; ? gb lists it]]

-- What is said of a value.
local function text_of(value)
  make_index()
  local row, name = op_of(value), names[value] and names[value][1]
  if row and type(value) == "function" then return op_text(row) end
  if type(value) == "function" then return (name and name .. "\n" or "") .. source_text(value) end
  if gb.is_tensor(value) then
    return ("a tensor: %s, shape %s, on %s%s\nits methods:\n%s"):format(value.dtype, tostring(value.shape), value.device,
      value.requires_grad and ", requires grad" or "", names_text(repl.methods()))
  end
  if type(value) == "table" then return ("%s\n%s"):format(name or "a table with", names_text(value)) end
  return ("%s: a %s"):format(repl.show(value), type(value))
end

-- The value of a name that was given as a string: a path, or the name of an op.
local function text_of_name(name)
  make_index()
  local last = name:match("([%a_][%w_]*)$")
  local value = repl.value_of(name)
  if value == nil and last and last ~= name then
    local path = name:gsub("^F[.:]", "gb.nn.functional."):gsub("^Tensor[.:]", "tensor."):gsub("^x[.:]", "tensor.")
    if path:find("^tensor%.") then value = repl.methods()[last] else value = repl.value_of(path) end
  end
  if value ~= nil then return text_of(value) end
  local row = ops[last or name] or ops[(last or name):gsub("_$", "")]
  if row then return op_text(row) end
  local near = {}
  for op in next, ops do
    if #name >= 3 and op:find(name, 1, true) then near[#near + 1] = op end
  end
  sort(near)
  return ("there is no help on '%s'%s"):format(name, near[1] and "; there are " .. concat(near, ", ") or "")
end

-- ====}

-- help(), help(value), help "name".
function repl.help(...)
  local text
  if select("#", ...) == 0 then text = general
  else
    local value = ...
    text = type(value) == "string" and text_of_name(value) or text_of(value)
  end
  io.stdout:write(text, "\n")
end
