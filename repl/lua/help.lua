-- help.lua - help(x) and ? x: what an op, a function, a class or a value is. The library knows the texts
-- (gb.test.help_entry); this finds who is meant, and lays them out.

local repl = ...
local gb = repl.gb
local type, next, ipairs, tostring, pcall = type, next, ipairs, tostring, pcall
local concat, sort, unpack, select, load, error = table.concat, table.sort, table.unpack, select, load, error
local find, match, gmatch, gsub, sub, rep, format = string.find, string.match, string.gmatch, string.gsub, string.sub,
  string.rep, string.format
local getinfo, open, is_tensor = debug.getinfo, io.open, gb.is_tensor
local stdout = io.stdout
local write = stdout.write
local help_entry, public_names = gb.test.help_entry, gb.test.public_names

local sandboxes = { files = "only those that have files", none = "not in any" } -- where not every sandbox has it
local derivatives = { no = "none", once = "can be differentiated once", twice = "can be differentiated twice" }

-- {==== functions by identity ====

local names, rows -- the full name of a function or class of the library; the row of the op that a function is

local function make_index()
  if names then return end
  names, rows = {}, {}
  for _, entry in ipairs(public_names()) do
    if entry.value ~= nil then
      names[entry.value] = names[entry.value] or entry.name
      rows[entry.value] = entry.op
    end
  end
end

-- The full name of a function or class of the library, or nil.
function repl.name_of(value)
  make_index()
  return names[value]
end

-- Where the options of a function are listed: behind the semicolon of its signature, or behind "options:" in its text.
local function option_part(value)
  if rows[value] then return match(rows[value].signature, "^[^;]-;(.-)%->") end
  local entry = names[value] and help_entry(value)
  local named = entry and match(entry.signature, "^[^;]-%([^;]*;(.-)%)%s*%->") or entry and
    match(entry.signature, "^[^;]-%([^;]*;(.*)%)$")
  if named then return gsub(gsub(named, "%b{}", ""), '%b""', "") end
  local part = entry and match(entry.doc, "[Oo]ptions: (.*)$")
  return part and gsub(gsub(part, "%b()", ""), "%b{}", "")
end

-- The names of the options that a function takes, or nil.
function repl.options_of(value)
  make_index()
  local part = value ~= nil and option_part(value)
  if not part then return nil end
  local list = {}
  for name in gmatch("," .. part, ",%s*([%a_][%w_]*)") do list[#list + 1] = name end
  return list
end

-- ====}

-- {==== texts ====

-- A paragraph in lines of the terminal's width, behind a label.
local function paragraph(label, text)
  local width, lines, line = repl.width() - 1, {}, format("  %-9s", label)
  for word in gmatch(text, "%S+") do
    if #line + #word + 1 > width and #line > 11 then
      lines[#lines + 1] = line
      line = rep(" ", 11)
    end
    line = line .. " " .. word
  end
  lines[#lines + 1] = line
  return concat(lines, "\n")
end

local function entry_text(entry)
  local lines = { find(entry.signature, "(", 1, true) and entry.signature or entry.name, paragraph("", entry.doc) }
  local function add(label, text)
    if text and text ~= "" then lines[#lines + 1] = paragraph(label, text) end
  end
  add("found as", entry.calls and concat(entry.calls, ", "))
  add("shapes", entry.shapes)
  add("autocast", entry.autocast and format("%s: %s", entry.autocast, entry.dtypes))
  add("gradient", entry.derivative and derivatives[entry.derivative])
  add("sandbox", sandboxes[entry.level])
  add("errors", entry.errors)
  add("example", entry.example)
  return concat(lines, "\n")
end

-- The names in a module or a table, in lines of the terminal's width.
local function names_text(value)
  local list = {}
  for key, field in next, value do
    if repl.is_name(key) and sub(key, 1, 1) ~= "_" then
      list[#list + 1] = type(field) == "function" and key .. "()" or key
    end
  end
  sort(list)
  return paragraph("", concat(list, " "))
end

-- Where a Lua function was written, with the comment above it when its file can be read.
local function source_text(value)
  local info = getinfo(value, "S")
  if info.what == "C" then return "a function in C" end
  local file = sub(info.source, 1, 1) == "@" and open(sub(info.source, 2), "r")
  local comment, count = {}, 0
  if file then
    for line in file:lines() do
      count = count + 1
      if count >= info.linedefined then break end
      local text = match(line, "^%s*%-%-+%s?(.*)$")
      if text then comment[#comment + 1] = "  " .. text else comment = {} end
    end
    file:close()
  end
  return concat({ format("a Lua function, %s:%d", info.short_src, info.linedefined), unpack(comment) }, "\n")
end

local general = [[
help(x) or ? x   what x is: an op, a function, a class, a tensor, or a name in quotes
:time code       run it and show how long it took, devices synchronised
:mem             bytes in tensors by kind, and in Lua
:modes           gradients, autocast, precision, threads, devices
:doctor          what this machine can do for mixed precision, and what is wrong
:quit            leave; so does Ctrl-D
Tab              completes names, methods, options of a call and files; Ctrl-R searches what was entered before
_                the last result; the prompts are _PROMPT and _PROMPT2
Ctrl-C           stops what runs; at the prompt it clears the line
gb               the library; ? gb lists it]]

-- What is said of a value that has no entry.
local function value_text(value)
  if is_tensor(value) then
    return format("a tensor: %s, shape %s, on %s%s; its methods:\n%s", value.dtype, tostring(value.shape), value.device,
      value.requires_grad and ", requires grad" or "", names_text(repl.methods()))
  end
  if type(value) == "function" then return source_text(value) end
  if type(value) == "table" then return "a table with\n" .. names_text(value) end
  return format("%s: a %s", repl.show(value), type(value))
end

local function text_of(value)
  local entry, near = help_entry(value)
  if entry then return entry_text(entry) end
  if type(value) ~= "string" then return value_text(value) end
  local found = repl.value_of(value)
  if found ~= nil then return value_text(found) end
  return format("there is no help on '%s'%s", value, near)
end

-- ====}

-- help(), help(value), help "name".
function repl.help(...)
  write(stdout, select("#", ...) == 0 and general or text_of((...)), "\n")
end

-- What follows a question mark: the value of an expression, or else a name.
function repl.help_on(topic)
  if topic == "" then return repl.help() end
  if help_entry(topic) then return repl.help(topic) end
  local chunk = load("return " .. topic, "=help")
  local ok, value = pcall(chunk or error)
  repl.help(chunk and ok and value ~= nil and value or topic)
end
