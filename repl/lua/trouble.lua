-- trouble.lua - errors as the prompt shows them: the message, the line of source it happened in with a caret where Lua
-- says what it stumbled over, and the frames of the recipe's own code.

local repl = ...
local type, tostring, pcall, ipairs, load = type, tostring, pcall, ipairs, load
local getinfo, getmetatable, open = debug.getinfo, debug.getmetatable, io.open
local format, rep, concat = string.format, string.rep, table.concat
local find, match, gmatch, gsub, sub = string.find, string.match, string.gmatch, string.gsub, string.sub
local tointeger, utf8_length = math.tointeger, utf8.len

local MOST_FRAMES = 16

repl.inputs = {} -- the text of what was entered, by the name of its chunk

local function coloured(code, text) return repl.colour and "\27[" .. code .. "m" .. text .. "\27[0m" or text end
function repl.bad(text) return coloured("31;1", text) end
function repl.dim(text) return coloured("2", text) end

-- Line `number` of a chunk's source, what was entered or a file, and the text above it.
local function source_line(chunk, number)
  local text = repl.inputs[chunk]
  local file = not text and open(chunk, "r")
  if file then
    text = file:read("a")
    file:close()
  end
  local at = 1
  for line, next_line in gmatch((text or "") .. "\n", "([^\n]*)\n()") do
    number = number - 1
    if number == 0 then return line, sub(text, 1, at - 1) end
    at = next_line
  end
end

-- The only place where a name stands in a line; nil where there is none, or more than one.
local function only_place(line, name)
  local pattern = "%f[%w_]" .. gsub(name, "%p", "%%%0") .. "%f[^%w_]"
  local first = find(line, pattern)
  if first and not find(line, pattern, first + 1) then return first end
end

-- The place of a token that Lua could not go on with: of several, the first up to which the text fails in the same way.
local function place_of_token(line, token, before)
  local at = 1
  while true do
    local first, last = find(line, token, at, true)
    if not first then return nil end
    local _, why = load(before .. sub(line, 1, last), "=x")
    if why and sub(why, -#token - 7) == "near '" .. token .. "'" then return first end
    at = first + 1
  end
end

-- The column that a message is about. before: what stands above the line.
local function column_of(line, message, before)
  local token = match(message, " near '(.+)'$")
  if token then return place_of_token(line, token, before) end
  if find(message, "near <eof>$") then return #line + 1 end
  local name = match(message, "%(%a+ '([^']+)'%)") or match(message, "^([%a_][%w_]*): ") or
    match(message, "has no '([%w_]+)'")
  return name and only_place(line, name)
end

-- "chunk:line: text" taken apart.
local function position_of(message)
  local chunk, number, text = match(message, "^(.-):(%d+): (.*)$")
  if chunk and not find(chunk, "\n", 1, true) then return chunk, tointeger(number), text end
end

-- The source line below a message, with the caret.
local function excerpt(message)
  local chunk, number, text = position_of(message)
  if not chunk then return "" end
  local line, before = source_line(chunk, number)
  if not line or #line > 500 then return "" end
  local shown, indent = gsub(line, "\t", " "), match(line, "^%s*")
  local out = "    " .. sub(shown, #indent + 1) .. "\n"
  local column = column_of(line, match(text, "^[^\n]*"), before)
  if column then
    local left = sub(shown, #indent + 1, column - 1)
    out = out .. "    " .. rep(" ", utf8_length(left) or #left) .. repl.bad("^") .. "\n"
  end
  return out
end

-- "name" of a frame, as text: in function 'f', in the main chunk.
local function frame_text(info)
  local where = format("%s:%d", info.short_src, info.currentline)
  if info.what == "main" then return where end
  return info.name and format("%s: in %s '%s'", where, info.namewhat ~= "" and info.namewhat or "function", info.name)
    or format("%s: in a function of line %d", where, info.linedefined)
end

-- The frames of code that is neither C nor the library's, from `level` on.
local function recipe_frames(level)
  local frames = {}
  for i = level, 1000000 do
    local info = getinfo(i, "Sln")
    if not info then break end
    if info.what ~= "C" and not find(info.source, "^=gibbous/") then
      frames[#frames + 1] = frame_text(info)
      if #frames > 2 * MOST_FRAMES then break end
    end
  end
  return frames
end

local function frames_text(frames)
  if #frames < 2 then return "" end
  local lines = {}
  for i, text in ipairs(frames) do
    if i > MOST_FRAMES then
      lines[#lines + 1] = "  ..."
      break
    end
    lines[#lines + 1] = "  " .. text
  end
  return repl.dim(concat(lines, "\n")) .. "\n"
end

-- An error value as a text.
local function text_of(value)
  if type(value) == "string" or type(value) == "number" then return tostring(value) end
  local meta = getmetatable(value)
  if type(meta) == "table" and meta.__tostring then return tostring(value) end
  return format("(error object is a %s value)", type(value))
end

-- The text of an error, with the frames given.
function repl.report(value, frames)
  local message = text_of(value)
  return repl.bad(match(message, "^[^\n]*")) .. match(message, "^[^\n]*(.*)$") .. "\n" .. excerpt(message) ..
    frames_text(frames or {})
end

-- The message handler of the prompt: what is printed, or nil for the value that ends a recipe without a failure.
function repl.trouble(value)
  if repl.is_finish(value) then return nil end
  if repl.stopping() then -- the hooks are off: nothing of the user's may run
    local position, reason = match(tostring(value), "^(.-:%d+): (.*)$")
    return format("%s%s\n", repl.bad(reason or "interrupted"), position and " at " .. position or "")
  end
  local ok, text = pcall(repl.report, value, recipe_frames(3))
  return ok and text or text_of(value) .. "\n"
end
