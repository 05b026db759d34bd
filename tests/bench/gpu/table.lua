-- table.lua - runs our half and PyTorch's in alternation on one GPU, and prints Markdown: kernels against the copy
-- bandwidth of the same run, products and attention beside PyTorch's, training steps beside its compiled ones, host
-- time, peak memory. It prints and never judges.
--
-- Bytes of a kernel: each operand read once and each result written once. Memory is the peak allocated, nothing
-- recomputed. GIBBOUS: our executable. GIBBOUS_PEER: a Python that has PyTorch, or no comparison. GIBBOUS_RUNS: how
-- many runs medians are of (3).

local gb = require "gibbous"
io.stdout:setvbuf("line")

local gibbous, peer, runs = os.getenv("GIBBOUS") or "build/gibbous", os.getenv("GIBBOUS_PEER"),
  tonumber(os.getenv("GIBBOUS_RUNS") or "3")
local here = "tests/bench/gpu/"
local wanted = {}
for _, name in ipairs(arg) do wanted[name] = true end

local function median(list)
  table.sort(list)
  return list[(#list + 1) // 2]
end

-- The medians of alternating runs of the commands: a table of values by name, the names in their order, and what was
-- said of cases that did not run.
local function measure(commands)
  local lists, order, notes = {}, {}, {}
  for _ = 1, runs do
    for _, command in ipairs(commands) do
      local pipe = assert(io.popen(command .. " 2>&1"))
      local last = ""
      for line in pipe:lines() do
        local name, value = line:match("^(.-)\t(%S+)$")
        if line:sub(1, 2) == "# " then notes[#notes + 1] = line:sub(3) end
        if name and not lists[name] then
          lists[name] = {}
          order[#order + 1] = name
        end
        if name then table.insert(lists[name], tonumber(value)) end
        last = line
      end
      if not pipe:close() then notes[#notes + 1] = ("`%s` failed: %s"):format(command, last) end
    end
  end
  for name, list in pairs(lists) do lists[name] = median(list) end
  return lists, order, notes
end

local function ours(text) return ("%s %scases.lua %s"):format(gibbous, here, text) end
local function theirs(text) return ("%s %speer.py %s"):format(peer, here, text) end

-- Ours and theirs of one group, and the order of our names.
local function both(group)
  local mine, order, notes = measure { ours(group) }
  local other, _, more = measure(peer and { theirs(group) } or {})
  table.move(more, 1, #more, #notes + 1, notes)
  return mine, other, order, notes
end

local function time(seconds)
  if not seconds then return "-" end
  if seconds < 1e-3 then return ("%.2f us"):format(seconds * 1e6) end
  return ("%.3f ms"):format(seconds * 1e3)
end
local function ratio(a, b) return a and b and ("%.3f"):format(a / b) or "-" end
local function head(title, ...)
  local columns = { ... }
  print(("\n## %s\n\n| %s |\n|%s"):format(title, table.concat(columns, " | "), ("---|"):rep(#columns)))
end
local function row(...) print("| " .. table.concat({ ... }, " | ") .. " |") end
local function say(notes)
  for _, note in ipairs(notes) do print("\n" .. note) end
end

local groups = {}

-- Bytes that a case moves, in multiples of the float32 tensor of 65,536 x 1,024.
local moves = {
  ["copy"] = 2, ["copy bfloat16"] = 1, ["add bfloat16"] = 1.5, ["gelu bfloat16"] = 1, ["cast to bfloat16"] = 1.5,
    ["cast to float32"] = 1.5,
  ["layer_norm"] = 2, ["softmax"] = 2, ["cross_entropy"] = 1, ["layer_norm and backward"] = 5, ["AdamW"] = 7,
  ["layer_norm bfloat16"] = 1, ["softmax bfloat16"] = 1, ["cross_entropy bfloat16"] = 0.5,
    ["layer_norm and backward bfloat16"] = 2.5,
}

function groups.kernels()
  local a, b, order, notes = both("kernels")
  local tensor = 65536 * 1024 * 4
  local bandwidth = a.copy and moves.copy * tensor / a.copy
  print(bandwidth and ("\nCopy bandwidth: %.2f TB/s read and written."):format(bandwidth / 1e12) or "")
  head("Kernels, 65,536 x 1,024 elements", "case", "ours", "share of the copy bandwidth", "PyTorch", "ours / PyTorch")
  for _, name in ipairs(order) do
    row(name, time(a[name]), bandwidth and ratio(moves[name] * tensor / a[name], bandwidth) or "-", time(b[name]),
      ratio(a[name], b[name]))
  end
  say(notes)
end

function groups.gemm()
  local a, b, order, notes = both("gemm")
  head("Square products", "case", "ours", "TFLOP/s", "PyTorch", "our rate / PyTorch's")
  for _, name in ipairs(order) do
    local n = tonumber(name:match("%d+"))
    row(name, time(a[name]), ("%.0f"):format(2e-12 * n ^ 3 / a[name]), time(b[name]), ratio(b[name], a[name]))
  end
  say(notes)
end

function groups.attention()
  local a, b, order, notes = both("attention")
  head("Causal attention in bfloat16, 16,384 tokens, 2,048 wide", "case", "ours", "TFLOP/s", "PyTorch's best", "by",
    "our rate / PyTorch's")
  for _, name in ipairs(order) do
    local t, best, by = tonumber(name:match("time (%d+)")), nil, "-"
    for other, seconds in pairs(b) do
      if other:sub(1, #name + 4) == name .. " by " and (not best or seconds < best) then
        best, by = seconds, other:sub(#name + 5)
      end
    end
    local operations = (name:find("backward") and 14 or 4) * 16384 * t * 2048 / 2 -- half of every product: causal
    row(name, time(a[name]), ("%.0f"):format(1e-12 * operations / a[name]), time(best), by, ratio(best, a[name]))
  end
  say(notes)
end

function groups.host()
  local a, b, order, notes = both("host")
  head("Host time of a call", "case", "ours", "PyTorch", "ours / PyTorch")
  for _, name in ipairs(order) do row(name, time(a[name]), time(b[name]), ratio(a[name], b[name])) end
  say(notes)
end

local modes = { "eager", "default", "reduce-overhead" }

function groups.char_gpt()
  local commands = { ours("char_gpt") }
  for _, mode in ipairs(peer and modes or {}) do commands[#commands + 1] = theirs("char_gpt " .. mode) end
  local a, order, notes = measure(commands)
  head("char_gpt at its CPU size, bf16-mixed, batch 12 x 64", "case", "a step", "steps/s")
  for _, name in ipairs(order) do row(name, time(a[name]), ("%.0f"):format(1 / a[name])) end
  say(notes)
end

function groups.gpt2()
  local tokens = os.tmpname()
  local file, state = assert(io.open(tokens, "wb")), 1
  for _ = 1, 1024 do -- two million ids, from a small generator: what they are costs nothing
    local ids = {}
    for i = 1, 2048 do
      state = (state * 1103515245 + 12345) % 2147483648
      ids[i] = string.pack("<I2", state // 65536 % 50257)
    end
    file:write(table.concat(ids))
  end
  file:close()
  for _, batch in ipairs { 16, 32, 64 } do
    local steps = 60
    local commands = { ("%s %srecipe.lua 10 --data %s --batch %d --steps %d"):format(gibbous, here, tokens, batch,
      steps) }
    for _, mode in ipairs(peer and modes or {}) do
      commands[#commands + 1] = theirs(("gpt2 %s %d %d"):format(mode, batch, steps))
    end
    local a, _, notes = measure(commands)
    local speed, peak = ("gpt2 batch %d tokens per second"):format(batch), ("gpt2 batch %d peak bytes"):format(batch)
    head(("GPT-2 124M, bf16-mixed, batch %d x 1,024"):format(batch), "", "tokens/s", "ours / it", "peak MiB",
      "ours / it")
    local function line(title, suffix)
      local s, p = a[speed .. suffix], a[peak .. suffix]
      row(title, s and ("%.0f"):format(s) or "-", ratio(a[speed], s), p and ("%.0f"):format(p / 2 ^ 20) or "-",
        ratio(a[peak], p))
    end
    line("ours, recipes/gpt2.lua", "")
    for _, mode in ipairs(peer and modes or {}) do line("PyTorch " .. mode, " " .. mode) end
    say(notes)
  end
  os.remove(tokens)
end

-- The output of a command, without its last newline.
local function output(command)
  local pipe = io.popen(command .. " 2>/dev/null")
  local text = pipe and pipe:read("a") or ""
  if pipe then pipe:close() end
  return (text:gsub("%s+$", ""))
end

print("# " .. output("nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -1") ..
  ", " .. os.date("!%F"))
print(("\n`GIBBOUS_RUNS=%d ./dev gpu bench%s`, %s at %s; medians of %d runs."):format(runs,
  #arg > 0 and " " .. table.concat(arg, " ") or "", gb._VERSION,
  output("git rev-parse --short HEAD"), runs))
print(peer and output(theirs("version")) or "GIBBOUS_PEER names no Python with PyTorch, so only ours and the floors \z
  are here.")
for _, name in ipairs { "kernels", "gemm", "attention", "host", "char_gpt", "gpt2" } do
  if next(wanted) == nil or wanted[name] then groups[name]() end
end
