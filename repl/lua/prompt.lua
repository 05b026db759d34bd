-- prompt.lua - one input at the prompt: is it a whole chunk, what does it give, and how is that shown.

local repl = ...
local load, select, rawset, error, _G = load, select, rawset, error, _G
local format, find, match = string.format, string.find, string.match
local stdout = io.stdout
local write = stdout.write

local KEPT = 1000 -- inputs whose text is kept for the excerpts of errors

local count, told = 0, false

-- "= x" is lua's old way to ask for x.
local function without_sign(text) return match(text, "^=(.*)$") or text end

-- An expression first, then statements. The newline makes an unfinished short string wrong at once, where a long one
-- waits for more.
local function try(text, name)
  text = without_sign(text)
  local chunk = load("return " .. text .. "\n", name, "t")
  if chunk then return chunk, nil, "return " .. text end
  local why
  chunk, why = load(text .. "\n", name, "t")
  return chunk, why, text
end

-- The chunk of a text that was entered, or nil and the message. Its source is kept for excerpts.
function repl.compile(text)
  local name = format("in[%d]", count)
  repl.inputs[name] = text
  repl.inputs[format("in[%d]", count - KEPT)] = nil
  return try(text, "=" .. name)
end

local function is_command(text) return find(text, "^%s*[?:]") and not find(text, "^%s*::") end

-- Is a text whole, or wrong already? No: more lines are needed. What is pending helps completion.
function repl.is_whole(text)
  repl.pending = nil
  if is_command(text) then return true end
  local chunk, why = try(text, "=in")
  if chunk or not find(why, "near <eof>$") then
    local _, other = load("return " .. without_sign(text) .. "\n", "=in", "t")
    if chunk or not (other and find(other, "near <eof>$") and not find(other, "'?<eof>'? expected")) then
      return true
    end
  end
  repl.pending = text .. "\n"
  return false
end

-- Say once that a local does not outlive its input.
local function notice_local(text)
  local word, name = match(text, "^%s*(local)%s+([%a_][%w_]*)")
  if told or not word then return end
  if name == "function" then name = match(text, "^%s*local%s+function%s+([%a_][%w_]*)") or name end
  told = true
  write(stdout, repl.dim(format("note: a local ends with the input it is declared in; leave out 'local' to keep '%s'",
    name)), "\n")
end

-- Print results, and keep the first in _ .
local function show_results(...)
  local n = select("#", ...)
  for i = 1, n do write(stdout, repl.show((select(i, ...))), "\n") end
  if n > 0 and (...) ~= nil then rawset(_G, "_", (...)) end
end

-- Run an input; true: the prompt ends.
function repl.run(text)
  if is_command(text) then
    local _, ends = repl.command(text)
    return ends
  end
  count = count + 1
  local chunk, why, source = repl.compile(text)
  if not chunk then error(why, 0) end
  if source == text then notice_local(text) end
  show_results(chunk())
end

if rawget(_G, "help") == nil then rawset(_G, "help", repl.help) end
