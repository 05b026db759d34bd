-- commands.lua - what begins with a colon or a question mark at the prompt.

local repl = ...
local gb = repl.gb
local ipairs, pairs, error, format, match, sort, concat = ipairs, pairs, error, string.format, string.match, table.sort,
  table.concat
local tointeger, collectgarbage = math.tointeger, collectgarbage
local stdout = io.stdout
local write = stdout.write

local function out(...) write(stdout, format(...), "\n") end

-- A number of bytes as people read it.
local function bytes_text(bytes)
  for _, unit in ipairs { "bytes", "KiB", "MiB", "GiB" } do
    if bytes < 1024 or unit == "GiB" then return unit == "bytes" and format("%d bytes", bytes) or
      format("%.1f %s", bytes, unit) end
    bytes = bytes / 1024
  end
end

local commands = {}

-- :time code - an expression or statements.
function commands.time(text)
  if text == "" then error("there is nothing to time; write :time and an expression or statements, for example \z
    :time gb.randn(512, 512)", 0) end
  local chunk, why = repl.compile(text)
  if not chunk then error(why, 0) end
  local seconds = gb.time(chunk)
  if seconds >= 1 then out("%.3f s", seconds)
  elseif seconds >= 1e-3 then out("%.3f ms", seconds * 1e3)
  else out("%.3f us", seconds * 1e6) end
end

function commands.mem()
  local stats, kinds = gb.memory_stats(), {}
  for kind in pairs(stats.current) do kinds[#kinds + 1] = kind end
  sort(kinds)
  for _, kind in ipairs(kinds) do
    if stats.peak[kind] > 0 then
      out("  %-14s %12s   peak %12s", kind, bytes_text(stats.current[kind]), bytes_text(stats.peak[kind]))
    end
  end
  out("  %-14s %12s   peak %12s", "tensors, all", bytes_text(stats.current_total), bytes_text(stats.peak_total))
  out("  %-14s %12s   peak %12s", "reserved", bytes_text(stats.reserved), bytes_text(stats.peak_reserved))
  out("  %-14s %12s", "Lua", bytes_text(tointeger(collectgarbage("count") * 1024 // 1)))
end

function commands.modes()
  out("  gradients      %s", gb.is_grad_enabled() and "on" or "off")
  out("  autocast       %s", gb.amp.is_enabled() and gb.amp.dtype() or "off")
  out("  default dtype  %s", gb.get_default_dtype())
  out("  float32 matmul %s", gb.get_float32_matmul_precision())
  out("  threads        %d", gb.get_num_threads())
  out("  devices        %s", concat(gb.devices(), ", "))
end

function commands.help() repl.help() end
function commands.doctor() gb.doctor() end
function commands.quit() return true end
commands.q = commands.quit

-- Run a line that is a command: whether it was one, and whether the prompt ends.
function repl.command(text)
  local topic = match(text, "^%s*%?%s*(.-)%s*$")
  if topic then return true, repl.help_on(topic) end
  local name, rest = match(text, "^%s*:(%a*)%s*(.-)%s*$")
  if not name then return false end
  if not commands[name] then error(format("there is no command ':%s'; :help lists them", name), 0) end
  return true, commands[name](rest) == true
end
