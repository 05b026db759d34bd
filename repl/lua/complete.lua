-- complete.lua - what Tab offers: globals and keywords, fields and methods of the value before a dot or colon, keys of
-- a table of options inside a call, file names inside strings.
--
-- Values are looked at raw: no metamethod and no function is called, so pressing Tab changes nothing.

local repl = ...
local gb = repl.gb
local type, next, ipairs, rawget, select, _G = type, next, ipairs, rawget, select, _G
local find, match, gsub, sub, rep = string.find, string.match, string.gsub, string.sub, string.rep
local tointeger, max, getenv, is_tensor = math.tointeger, math.max, os.getenv, gb.is_tensor
local getmetatable, sort, concat = debug.getmetatable, table.sort, table.concat

local tensor_fields = { "shape", "dtype", "device", "grad", "requires_grad" }

-- {==== values ====

-- Names of the library wait in its modules until they are used (bindings/late.h): once they are all made.
local make_names = gb.test.public_names
local function see_names()
  if make_names then make_names() end
  make_names = nil
end

-- Raw fields of a value, through tables in __index; each name once, the nearest value wins.
local function each_field(value, found)
  local seen = {}
  see_names()
  for _ = 1, 20 do
    if is_tensor(value) then value = repl.methods() end
    if type(value) == "table" and not seen[value] then
      seen[value] = true
      for key, field in next, value do
        if found[key] == nil then found[key] = field end
      end
    end
    local meta = getmetatable(value)
    value = type(meta) == "table" and rawget(meta, "__index")
    if type(value) ~= "table" then return end
  end
end

local function field_of(value, key)
  local found = {}
  each_field(value, found)
  return found[key]
end

-- The value of a chain of names: "gb.nn.functional", "models[2].head"; nil when it cannot be told without running code.
local function value_of(chain)
  local name, rest = match(chain, "^([%a_][%w_]*)(.*)$")
  if not name then return match(chain, "^[\"']") and "" or nil end
  local value = rawget(_G, name)
  while value ~= nil and rest ~= "" do
    local key, after = match(rest, "^[.:]([%a_][%w_]*)(.*)$")
    if not key then
      key, after = match(rest, "^%[(%d+)%](.*)$")
      key = tointeger(key)
    end
    if not key then
      local _
      _, key, after = match(rest, "^%[([\"'])(.-)%1%](.*)$")
    end
    if not key then return nil end
    value, rest = field_of(value, key), after
  end
  return value
end
repl.value_of = value_of

-- The chain of names that ends a text: "x = gb.nn" -> "gb.nn".
local function chain_before(text)
  local chain = match(text, "([%a_][%w_.:%[%]\"']*)%s*$")
  while chain and not match(chain, "^[%a_][%w_]*$") do -- brackets that belong to what stands before
    local shorter = match(chain, "^[^%[]*%[([%a_].*)$")
    if not shorter or select(2, gsub(chain, "%[", "")) == select(2, gsub(chain, "%]", "")) then break end
    chain = shorter
  end
  return chain
end

-- ====}

-- {==== lists of candidates: { name = value } ====

-- Names in a folder that begin as the text inside the string does; the part after the last slash is completed.
local function files(text)
  local path, part = match(text, "^(.*/)([^/]*)$")
  path, part = path or "", part or text
  local from = gsub(path, "^~/", (getenv("HOME") or "~") .. "/")
  local found = {}
  for _, name in ipairs(repl.folder(from)) do
    if sub(name, 1, 1) ~= "." or sub(part, 1, 1) == "." then found[name] = true end
  end
  return found, part
end

-- Fields of a value; after a colon only what can be called.
local function fields(value, separator)
  local all, found = {}, {}
  each_field(value, all)
  if is_tensor(value) then
    for _, name in ipairs(tensor_fields) do all[name] = true end
  end
  for key, field in next, all do
    if repl.is_name(key) and (separator == "." or type(field) == "function") then found[key] = field end
  end
  return found
end

local function globals()
  local found = {}
  for key, value in next, _G do
    if repl.is_name(key) then found[key] = value end
  end
  for word in next, repl.keywords do found[word] = true end
  return found
end

-- The options of the call whose table of options the cursor is in, or nil.
local function options(text, open)
  local at = open[#open]
  if not at or sub(text, at, at) ~= "{" then return nil end
  local before = sub(text, 1, at - 1)
  local chain = not find(before, "[,(=]%s*$") and chain_before(before)
  if not chain then
    local outer = open[#open - 1]
    chain = outer and sub(text, outer, outer) == "(" and chain_before(sub(text, 1, outer - 1))
  end
  local names = chain and repl.options_of(value_of(chain))
  if not names then return nil end
  local found = {}
  for _, name in ipairs(names) do found[name] = "option" end
  return next(found) and found or nil
end

-- ====}

-- The candidates at the end of a text, and the part of a name that is there already.
local function candidates(text)
  local state = repl.scan(text)
  if state.comment then return {}, "" end
  if state.string then return files(sub(text, state.string)) end
  local chain, separator, part = match(text, "([%a_\"'][%w_.:%[%]\"']*)([.:])([%a_]?[%w_]*)$")
  if chain then
    local value = value_of(chain_before(chain) or chain)
    return value ~= nil and fields(value, separator) or {}, part
  end
  part = match(text, "[%a_][%w_]*$") or ""
  return options(sub(text, 1, #text - #part), state.open) or globals(), part
end

-- What is typed after a candidate that is the only one.
local function ending(name, value)
  if value == "option" then return name .. " = " end
  return type(value) == "function" and name .. "(" or name
end

-- The names in columns.
local function columns(names)
  local widest = 0
  for _, name in ipairs(names) do widest = max(widest, #name) end
  local per_line, lines = max(1, repl.width() // (widest + 2)), {}
  local rows = (#names + per_line - 1) // per_line
  for row = 1, rows do
    local cells = {}
    for i = row, #names, rows do cells[#cells + 1] = names[i] .. rep(" ", widest + 2 - #names[i]) end
    lines[row] = gsub(concat(cells), "%s+$", "")
  end
  return concat(lines, "\n") .. "\n"
end

-- complete(text, cursor): what to insert, and a list to show when nothing can be inserted.
function repl.complete(text, cursor)
  local found, part = candidates((repl.pending or "") .. sub(text, 1, cursor))
  local names = {}
  for name in next, found do
    if sub(name, 1, #part) == part and (part ~= "" or sub(name, 1, 1) ~= "_") then names[#names + 1] = name end
  end
  sort(names)
  if #names == 0 then return nil end
  if #names == 1 then return sub(ending(names[1], found[names[1]]), #part + 1) end
  local common = names[1]
  for _, name in ipairs(names) do
    while sub(name, 1, #common) ~= common do common = sub(common, 1, -2) end
  end
  if #common > #part then return sub(common, #part + 1) end
  return nil, columns(names)
end
