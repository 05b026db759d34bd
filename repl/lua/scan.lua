-- scan.lua - where in a piece of Lua the cursor stands: inside a string, a comment, or which brackets.

local repl = ...
local match, find, sub = string.match, string.find, string.sub

local opening = { ["("] = true, ["["] = true, ["{"] = true }
local closing = { [")"] = true, ["]"] = true, ["}"] = true }

-- Where the long bracket that opens at `at` ends, or nil: it does not; false: it is none.
local function long_end(text, at)
  local level = match(text, "^%[(=*)%[", at)
  if not level then return false end
  local _, last = find(text, "]" .. level .. "]", at, true)
  return last
end

-- Where the short string that opens at `at` ends, or nil.
local function string_end(text, at)
  local quote, i = sub(text, at, at), at + 1
  while i <= #text do
    local c = sub(text, i, i)
    if c == "\\" then i = i + 1
    elseif c == quote then return i
    elseif c == "\n" then return nil end
    i = i + 1
  end
end

-- Scan a text. Gives { open = list of positions of brackets that are open, string = where the open string's text
-- begins, comment = true }.
function repl.scan(text)
  local open, i = {}, 1
  while i <= #text do
    local c = sub(text, i, i)
    local last
    if c == '"' or c == "'" then
      last = string_end(text, i)
      if not last then return { open = open, string = i + 1 } end
    elseif c == "-" and sub(text, i + 1, i + 1) == "-" then
      last = long_end(text, i + 2)
      if last == false then last = find(text, "\n", i, true) end
      if not last then return { open = open, comment = true } end
    elseif c == "[" and long_end(text, i) ~= false then
      last = long_end(text, i)
      if not last then return { open = open, comment = true } end
    elseif opening[c] then open[#open + 1] = i
    elseif closing[c] then open[#open] = nil end
    i = (last or i) + 1
  end
  return { open = open }
end
