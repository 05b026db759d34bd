-- show.lua - values as the prompt shows them: strings quoted, tables to a depth of 4, tensors with dtype, shape and
-- device.
--
-- Nothing here calls code of the user's but __tostring and __name. A table is shown once on each path, so cycles end.

local repl = ...
local gb = repl.gb
local type, tostring, next, rawget, rawlen, ipairs = type, tostring, next, rawget, rawlen, ipairs
local getmetatable, getinfo, math_type, format, rep = debug.getmetatable, debug.getinfo, math.type, string.format,
  string.rep
local find, match, gmatch, gsub, byte, utf8_length = string.find, string.match, string.gmatch, string.gsub, string.byte,
  utf8.len
local is_tensor = gb.is_tensor
local concat, sort = table.concat, table.sort

local DEPTH, ITEMS = 4, 60 -- levels of tables, and entries of one, that are shown

local keywords = {}
for word in gmatch("and break do else elseif end false for function goto if in local nil not or repeat return then \z
  true until while", "%a+") do
  keywords[word] = true
end
repl.keywords = keywords

local escapes = { ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ['"'] = '\\"', ["\\"] = "\\\\" }

-- A string as Lua would read it; UTF-8 stays as it is.
local function quoted(text)
  text = gsub(text, '[%c"\\\127]', function(c) return escapes[c] or format("\\%03d", byte(c)) end)
  if not utf8_length(text) then text = gsub(text, "[\128-\255]", function(c) return format("\\%d", byte(c)) end) end
  return '"' .. text .. '"'
end
repl.quoted = quoted

local function is_name(key) return type(key) == "string" and find(key, "^[%a_][%w_]*$") and not keywords[key] end
repl.is_name = is_name

-- The keys that are not of the list part, in an order that does not depend on addresses where it can be helped.
local function other_keys(value, length)
  local keys = {}
  for key in next, value do
    if not (math_type(key) == "integer" and key >= 1 and key <= length) then keys[#keys + 1] = key end
  end
  local rank = { number = 1, string = 2, boolean = 3 }
  sort(keys, function(a, b)
    local ra, rb = rank[type(a)] or 4, rank[type(b)] or 4
    if ra ~= rb then return ra < rb end
    if ra <= 2 then return a < b end
    return tostring(a) < tostring(b)
  end)
  return keys
end

-- A tensor, and below it what it is.
local function tensor_text(value)
  local shape = concat(value.shape, "x")
  return format("%s\n[%s %s on %s]", tostring(value), value.dtype, shape == "" and "0-d" or shape, value.device)
end

local show

-- A tensor inside a table: what it is, or its value where it is one number.
local function tensor_brief(value)
  local shape = concat(value.shape, "x")
  return format("tensor(%s %s)", value.dtype, shape == "" and "0-d" or shape)
end

-- The entries of a table, each as text.
local function entries_of(value, depth, path)
  local length, entries, shown = rawlen(value), {}, 0
  local function add(text)
    shown = shown + 1
    if shown <= ITEMS then entries[shown] = text() end
  end
  for i = 1, length do add(function() return show(rawget(value, i), depth + 1, path) end) end
  for _, key in ipairs(other_keys(value, length)) do
    add(function()
      local name = is_name(key) and key or "[" .. show(key, DEPTH, path) .. "]"
      return name .. " = " .. show(rawget(value, key), depth + 1, path)
    end)
  end
  if shown > ITEMS then entries[ITEMS + 1] = format("... (%d more)", shown - ITEMS) end
  return entries
end

-- Entries on one line where they fit, else packed into lines (short ones) or one to a line.
local function lay_out(entries, depth)
  local line = "{ " .. concat(entries, ", ") .. " }"
  local room = repl.width() - 2 * depth
  if #line <= room and not find(line, "\n", 1, true) then return line end
  local indent, lines, current = rep("  ", depth + 1), {}, nil
  for i, entry in ipairs(entries) do
    local text = entry .. (i < #entries and "," or "")
    local short = #entry <= 12 and not find(entry, "\n", 1, true)
    if current and short and #current + #text + 1 <= room then current = current .. " " .. text
    else
      lines[#lines + 1] = current
      current = indent .. text
    end
    if not short then
      lines[#lines + 1] = current
      current = nil
    end
  end
  lines[#lines + 1] = current
  return "{\n" .. concat(lines, "\n") .. "\n" .. rep("  ", depth) .. "}"
end

local function table_text(value, depth, path)
  if next(value) == nil then return "{}" end
  if path[value] then return "{ ... itself }" end
  if depth >= DEPTH then return "{ ... }" end
  path[value] = true
  local text = lay_out(entries_of(value, depth, path), depth)
  path[value] = nil
  local meta = getmetatable(value)
  local name = type(meta) == "table" and rawget(meta, "__name")
  return type(name) == "string" and name .. " " .. text or text
end

-- A function, and where it was written.
local function function_text(value)
  local info = getinfo(value, "S")
  local name = repl.name_of and repl.name_of(value)
  if name then return format("function %s", name) end
  if info.what == "C" or find(info.source, "^=gibbous/") then return tostring(value) end
  return format("%s (%s:%d)", tostring(value), info.short_src, info.linedefined)
end

-- Has the value a text of its own?
local function has_text(value)
  local meta = getmetatable(value)
  return type(meta) == "table" and rawget(meta, "__tostring") ~= nil
end

-- The text of a value; depth 0 is the value itself.
function show(value, depth, path)
  local kind = type(value)
  if kind == "string" then return quoted(value) end
  if kind == "function" then return function_text(value) end
  if is_tensor(value) then return (depth == 0 and tensor_text or tensor_brief)(value) end
  if (kind == "table" or kind == "userdata") and has_text(value) then
    local text = tostring(value)
    return depth > 0 and find(text, "\n", 1, true) and (match(text, "^[^\n]*") .. " ...") or text
  end
  if kind == "table" then return table_text(value, depth, path) end
  if value ~= value then return "nan" end -- whatever its sign
  return tostring(value)
end

function repl.show(value) return show(value, 0, {}) end
