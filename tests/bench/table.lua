-- table.lua - runs our cases and the peer's in alternation, in processes of their own, and prints medians, ratios and
-- floors as Markdown tables. Times on a shared machine are noisy; what counts are the ratios within one run. It prints
-- and never judges.

local gb = require "gibbous"
io.stdout:setvbuf("line")

-- With GIBBOUS_CLOCK=cpu both have one thread, and processor time counts, which other work changes least.
local alone = os.getenv "GIBBOUS_CLOCK" == "cpu"
local text, cores = arg[1], alone and 1 or tonumber(arg[2])
local peer, runs = os.getenv("GIBBOUS_PEER"), tonumber(os.getenv("GIBBOUS_RUNS") or "5")
local vocabulary = gb.data.text(text):vocabulary_size()
local peer_limit = tonumber(os.getenv("GIBBOUS_PEER_SECONDS") or "20") -- for each of the peer's cases
local wanted, given_up = {}, {} -- given_up: cases of the peer that took longer, a list
for i = 3, #arg do wanted[arg[i]] = true end

local function median(list)
  table.sort(list)
  return list[(#list + 1) // 2]
end

-- Run a command; its lines "name <tab> seconds" are added to the lists in `into`, new names to `order`.
local function collect(command, into, order)
  local pipe = assert(io.popen(command))
  for line in pipe:lines() do
    local name, seconds = line:match("^(.-)\t(%S+)$")
    if name then
      if not into[name] then
        into[name] = {}
        order[#order + 1] = name
      end
      table.insert(into[name], tonumber(seconds) or math.huge)
      if seconds == "over" and not given_up[name] then
        given_up[name] = true
        given_up[#given_up + 1] = name
      end
    end
  end
  pipe:close()
end

-- Groups that cases.lua lacks, and where they are.
local files = { layers = "layers", optimizers = "layers", sorting = "layers", rows = "layers", models = "models" }

local function ours(group, threads, precision)
  if group == "gpt" then
    return ("build/gibbous tests/bench/one_run.lua 20 %d --data %s --precision %s --steps 60"):format(threads, text,
      precision)
  end
  return ("build/gibbous tests/bench/%s.lua %s %d %d %s"):format(files[group] or "cases", group, threads, vocabulary,
    precision or "32-true")
end

local function theirs(group, threads, precision)
  return ("%s tests/bench/peer.py %s %d %d %s"):format(peer, group, threads, vocabulary, precision or "32-true")
end

-- With what was given up once left out.
local function bounded(command)
  return ("GIBBOUS_PEER_SECONDS=%g GIBBOUS_PEER_SKIP='%s' %s"):format(peer_limit, table.concat(given_up, ";"), command)
end

-- The medians of alternating runs of our commands and the peer's, by name, and the names in their order.
local function alternate(our_commands, peer_commands)
  local mine, other, order, rest = {}, {}, {}, {}
  for _ = 1, runs do
    for _, command in ipairs(our_commands) do collect(command, mine, order) end
    for _, command in ipairs(peer and peer_commands or {}) do collect(bounded(command), other, rest) end
  end
  for _, times in ipairs { mine, other } do
    for name, list in pairs(times) do times[name] = median(list) end
  end
  return mine, other, order
end

local function pretty(seconds)
  if not seconds then return "-" end
  if seconds == math.huge then return ("over %g s"):format(peer_limit) end
  if seconds < 1e-3 then return ("%.2f us"):format(seconds * 1e6) end
  return ("%.2f ms"):format(seconds * 1e3)
end

local function ratio(a, b) return a and b and a < math.huge and b < math.huge and ("%.2f"):format(a / b) or "-" end

local function head(title, ...)
  local columns = { ... }
  print(("\n## %s\n\n| %s |\n|%s"):format(title, table.concat(columns, " | "), ("---|"):rep(#columns)))
end

local function row(...) print("| " .. table.concat({ ... }, " | ") .. " |") end

local precisions = { "32-true", "bf16-mixed", "16-mixed" }
local groups = {}

-- The number of threads, 1, 2, 4 .. cores, at which the peer's step of char_gpt is fastest.
local function best_threads()
  local best, least = cores, math.huge
  local threads = 1
  while threads <= cores do
    local times = {}
    for _ = 1, 3 do collect(bounded(theirs("gpt", threads)), times, {}) end
    local seconds = median(times["char_gpt 32-true"])
    print(("PyTorch with %d threads: %s a step"):format(threads, pretty(seconds)))
    if seconds < least then best, least = threads, seconds end
    threads = threads < cores and math.min(2 * threads, cores) or cores + 1
  end
  return best
end

local peer_threads = cores

function groups.start()
  local times, kib = {}, 0
  for _ = 1, 4 * runs do
    local before = gb.clock()
    os.execute("build/gibbous -e ''")
    times[#times + 1] = gb.clock() - before
  end
  local status = io.popen([[build/gibbous -e 'for line in io.lines("/proc/self/status") do print(line) end']])
  for line in status:lines() do kib = tonumber(line:match("^VmHWM:%s*(%d+)")) or kib end
  status:close()
  head("Start", "`gibbous -e ''`", "ours", "to reach")
  row("time, the shell that starts it included", pretty(median(times)), "20 ms")
  row("resident memory", ("%.1f MiB"):format(kib / 1024), "25 MiB")
end

function groups.step()
  local mine, others = { ours("gemms", cores) }, {}
  for _, group in ipairs { "gpt", "mnist" } do
    for _, precision in ipairs(precisions) do
      mine[#mine + 1] = ours(group, cores, precision)
      if precision ~= "16-mixed" then others[#others + 1] = theirs(group, peer_threads, precision) end
    end
  end
  local a, b, order = alternate(mine, others)
  local gemms, floor = a["gemms of char_gpt"], a["floor of char_gpt"]
  head("One training step", "step", "ours", "PyTorch", "ours / PyTorch", "ours / our 32-true", "PyTorch / its 32-true",
    "ours / its GEMMs alone",
    "ours / its floor: GEMMs, and bytes of the rest / copy bandwidth")
  for _, name in ipairs(order) do
    local base, gpt = name:match("^%S+") .. " 32-true", name:match("gpt")
    if name ~= "copy" then
      row(name, pretty(a[name]), pretty(b[name]), ratio(a[name], b[name]), ratio(a[name], a[base]),
        ratio(b[name], b[base]),
        gpt and ratio(a[name], gemms) or "-", gpt and ratio(a[name], floor) or "-")
    end
  end
end

-- Ours with one thread and with all, and the speed-up.
function groups.threads()
  local one, all, order = {}, {}, {}
  local single = { ours("gpt", 1, "32-true"), ours("mnist", 1, "32-true"), ours("gemms", 1) }
  local full = { ours("gpt", cores, "32-true"), ours("mnist", cores, "32-true"), ours("gemms", cores) }
  for _ = 1, runs do
    for i in ipairs(single) do
      collect(single[i], one, order)
      collect(full[i], all, {})
    end
  end
  head("Threads", "case", "1 thread", cores .. " threads", "speed-up")
  for _, name in ipairs(order) do
    local a, b = median(one[name]), median(all[name])
    row(name, pretty(a), pretty(b), ratio(a, b))
  end
end

function groups.small()
  local reach = { ["x + y"] = "1 us", ["autocast scope"] = "1 us", ["step of an MLP of width 8"] = "25 us" }
  local a, b, order = alternate({ ours("small", cores) }, { theirs("small", peer_threads) })
  head("Calls with nothing to compute", "case", "ours", "PyTorch", "ours / PyTorch", "to reach")
  for _, name in ipairs(order) do row(name, pretty(a[name]), pretty(b[name]), ratio(a[name], b[name]), reach[name]) end
end

function groups.recurrent()
  local mine, others = {}, {}
  for _, precision in ipairs { "32-true", "bf16-mixed" } do
    mine[#mine + 1], others[#others + 1] = ours("recurrent", cores, precision), theirs("recurrent", cores, precision)
  end
  local a, b = alternate(mine, others)
  head("Recurrent layers, forward and backward", "layer", "ours", "PyTorch", "ours / PyTorch", "ours / our 32-true",
    "ours / their products alone")
  for _, precision in ipairs { "32-true", "bf16-mixed" } do
    for _, kind in ipairs { "LSTM", "GRU" } do
      local name = kind .. " " .. precision
      row(name, pretty(a[name]), pretty(b[name]), ratio(a[name], b[name]), ratio(a[name], a[kind .. " 32-true"]),
        ratio(a[name], a[("%s products %s"):format(kind, precision)]))
    end
  end
end

function groups.matmul()
  local a, b, order = alternate({ ours("matmul", cores) }, { theirs("matmul", peer_threads) })
  head("matmul", "m x k x n", "ours", "GFLOP/s", "PyTorch", "ours / PyTorch", "rate / float32's")
  for _, name in ipairs(order) do
    local m, k, n = name:match("(%d+)x(%d+)x(%d+)")
    row(name:sub(8), pretty(a[name]), ("%.0f"):format(2e-9 * m * k * n / a[name]), pretty(b[name]),
      ratio(a[name], b[name]),
      ratio(a[name:gsub("%S+$", "float32")], a[name]))
  end
end

-- Bytes that a case must move, in multiples of the 64 MB of 16 Mi float32 elements.
local moves = {
  ["copy"] = 2, ["add"] = 3, ["add bfloat16"] = 1, ["add transposed"] = 2, ["cast to bfloat16"] = 1.5,
    ["cast to float32"] = 1.5, ["amax"] = 1,
  ["layer_norm"] = 2, ["softmax"] = 2, ["cross_entropy"] = 1,
  ["layer_norm and backward"] = 5, ["softmax and backward"] = 5, ["cross_entropy and backward"] = 3,
  ["AdamW"] = 7, ["repeat_interleave"] = 1.5, ["nearest upsampling"] = 1.25,
}

-- Half of that for an input and result in bfloat16.
local function moved(name)
  local whole = name:match("^(.*) bfloat16$")
  return moves[name] or moves[whole] / 2
end

function groups.memory()
  local a, b, order = alternate({ ours("memory", cores) }, { theirs("memory", peer_threads) })
  local bandwidth = moves.copy * 64 / a.copy
  head("16 Mi elements, 64 MB in float32", "case", "ours", "floor: bytes / copy bandwidth", "floor / ours", "PyTorch",
    "ours / PyTorch")
  for _, name in ipairs(order) do
    local floor = moved(name) * 64 / bandwidth
    row(name, pretty(a[name]), pretty(floor), ratio(floor, a[name]), pretty(b[name]), ratio(a[name], b[name]))
  end
end

-- Passes over the gradients: reads and writes of 4 bytes an element; AdamW has 7. Everything is set against unscale_, a
-- norm and a clip by passes of their own, and step.
local passes = {
  ["copy"] = 2, ["unscale_"] = 2, ["clip, measured apart"] = 3, ["clip"] = 2, ["step"] = 7,
    ["unscale_, clip, step, measured apart"] = 12,
  ["unscale_, clip, step"] = 11, ["step { clip = 1 }"] = 9,
}

function groups.clip()
  local a, _, order = alternate({ ours("clip", cores) })
  head("From backward to update", "case", "ours", "floor: bytes / copy bandwidth", "floor / ours",
    "ours / measured apart")
  for _, name in ipairs(order) do
    local case, what = name:match("^(.-): (.*)$")
    local floor = passes[what] / passes.copy * a[case .. ": copy"]
    row(name, pretty(a[name]), pretty(floor), ratio(floor, a[name]),
      ratio(a[name], a[case .. ": unscale_, clip, step, measured apart"]))
  end
end

-- A table of cases that print their floors.
local function floored(title, group, ...)
  local mine, others = {}, {}
  for _, precision in ipairs { ... } do
    mine[#mine + 1], others[#others + 1] = ours(group, cores, precision), theirs(group, peer_threads, precision)
  end
  local a, b, order = alternate(mine, others)
  head(title, "case", "ours", "floor", "floor / ours", "PyTorch", "ours / PyTorch")
  for _, name in ipairs(order) do
    local least = a["floor of " .. name]
    if least then
      row(name, pretty(a[name]), pretty(least), ratio(least, a[name]), pretty(b[name]), ratio(a[name], b[name]))
    end
  end
end

function groups.layers() floored("Layers", "layers", "32-true", "bf16-mixed") end
function groups.optimizers() floored("Optimizers, 64 MB of parameters", "optimizers", "32-true") end
function groups.sorting() floored("Sorting and running sums", "sorting", "32-true") end
function groups.rows() floored("Rows of few elements", "rows", "32-true") end

function groups.models()
  local mine, others = {}, {}
  for _, precision in ipairs { "32-true", "bf16-mixed" } do
    mine[#mine + 1], others[#others + 1] = ours("models", cores, precision), theirs("models", peer_threads, precision)
  end
  local a, b, order = alternate(mine, others)
  head("One training step of models", "model", "ours", "PyTorch", "ours / PyTorch", "ours / our 32-true",
    "PyTorch / its 32-true", "ours / PyTorch's best", "floor", "floor / ours", "floor / PyTorch's best")
  for _, name in ipairs(order) do
    local base, least = name:gsub("%S+$", "32-true"), a["floor of " .. name]
    local best = math.min(b[name] or math.huge, b[base] or math.huge)
    if least then
      row(name, pretty(a[name]), pretty(b[name]), ratio(a[name], b[name]), ratio(a[name], a[base]),
        ratio(b[name], b[base]), ratio(a[name], best), pretty(least), ratio(least, a[name]), ratio(least, best))
    end
  end
end

if peer then
  os.execute(peer .. " tests/bench/peer.py version 1 1")
  peer_threads = alone and 1 or best_threads()
  print(("a case of PyTorch's that takes more than %g s (GIBBOUS_PEER_SECONDS) is given up"):format(peer_limit))
  print(("medians of %d alternating runs; PyTorch with %d threads, ours with %d"):format(runs, peer_threads, cores))
else
  print(("medians of %d runs; GIBBOUS_PEER names no Python with PyTorch: only ours and the floors are here"):format(
    runs))
end
if alone then print("processor time of one thread") end
for _, name in ipairs { "start", "step", "threads", "small", "recurrent", "matmul", "memory", "clip", "layers",
  "models", "optimizers", "sorting", "rows" } do
  if next(wanted) == nil or wanted[name] then groups[name]() end
end
