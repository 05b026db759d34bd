-- traffic.lua - what a training step launches, and what its launches read and write of device memory, compared with
-- the table in traffic.md, so that traffic which creeps in fails. On the emulated device, in its build that counts
-- (traffic.cc).
--
--   build-emulate/gibbous tests/cuda_on_cpu/traffic.lua [--write]     (docs/cuda.md has the variables it wants)
--
-- A step of a small GPT-2 as recipes/gpt2.lua makes it, in bf16-mixed, is measured at two sizes. The table has a
-- formula of the sizes for each kernel of each op; what they give for GPT-2 124M stands beside them. --write measures
-- more sizes and finds the formulas: of each row the fewest terms, of those below, that give all of them. A small
-- residual network, channels last, is counted too: what its convolutions launch beside the library's is a copy of a
-- layout.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local nn, F, amp, optim = gb.nn, gb.nn.functional, gb.amp, gb.optim

local TABLE, FILE = "tests/cuda_on_cpu/traffic.md", os.getenv("GIBBOUS_CUDA_TRAFFIC_FILE")
gb.set_default_device("cuda")

-- {==== measuring ====

-- Run a step, then once more, when all is there: a list of launches { op, kernel, bytes }, in order.
local function launches_of(step)
  step()
  gb.cuda.synchronize()
  io.open(FILE, "w"):close()
  step()
  gb.cuda.synchronize()
  local list = {}
  for line in io.lines(FILE) do
    local ranges, kernel, read, written = line:match("^(.-)\t(.-)\t(%d+)\t(%d+)$")
    local op = ranges:match("[^/]+$")
    if kernel ~= "copy to the host" then -- what synchronising reads
      list[#list + 1] = { op = (ranges:match("^backward/") and "backward: " or "") .. (op == "-" and "between" or op),
        kernel = kernel, bytes = tonumber(read) + tonumber(written) }
    end
  end
  return list
end

-- GPT-2 of z.L layers of z.C features (heads of 64) over z.V ids, and its step on z.B sequences of z.T.
local function gpt2_step(z)
  gb.manual_seed(1)
  local precision = amp.precision("bf16-mixed")
  local GPT2 = nn.Module:extend("GPT2")
  function GPT2:init()
    self.tokens, self.positions = nn.Embedding(z.V, z.C), nn.Embedding(z.T, z.C)
    self.blocks = {}
    for i = 1, z.L do
      self.blocks[i] = nn.TransformerBlock(z.C, z.C // 64, { is_causal = true, norm_out = "autocast" })
    end
    self.norm = nn.LayerNorm(z.C, { out = "autocast" })
  end
  function GPT2:loss(ids, targets)
    local x = self.tokens(ids) + self.positions(gb.arange(ids:size(2)))
    for _, part in ipairs(self.blocks) do x = part(x) end
    return F.linear_cross_entropy(self.norm(x):flatten(1, 2), self.tokens.weight, targets:flatten())
  end
  local model = GPT2():to("cuda", precision)
  local opt = optim.AdamW(optim.groups(model, { weight_decay = 0.1 }), { lr = 6e-4, betas = { 0.9, 0.95 } })
  local scaler, parameters = amp.GradScaler(precision), model:parameters()
  local ids = gb.arange(z.B * z.T, { dtype = "int64" }):remainder(z.V):reshape(z.B, z.T)
  return function()
    opt:zero_grad()
    local loss = amp.autocast(precision, function() return model:loss(ids, ids) end)
    scaler:scale(loss):backward()
    scaler:unscale_(opt)
    nn.utils.clip_grad_norm_(parameters, 1.0)
    scaler:step(opt)
    scaler:update()
  end
end

-- Two blocks of a residual network on 16 x 16 pictures of 8 channels, and its step.
local function resnet_step()
  gb.manual_seed(2)
  local precision = amp.precision("bf16-mixed")
  local function conv(inputs, outputs, kernel, stride)
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, { stride = stride, padding = kernel // 2, bias = false }),
      nn.BatchNorm2d(outputs))
  end
  local Net = nn.Module:extend("Net")
  function Net:init()
    self.stem = conv(8, 16, 3, 1)
    self.first = nn.Sequential(conv(16, 16, 3, 1), nn.ReLU(), conv(16, 16, 3, 1))
    self.second = nn.Sequential(conv(16, 32, 3, 2), nn.ReLU(), conv(32, 32, 3, 1))
    self.project = conv(16, 32, 1, 2)
    self.head = nn.Linear(32, 16)
  end
  function Net:forward(x)
    x = F.relu(self.stem(x))
    x = F.relu(self.first(x) + x)
    x = F.relu(self.second(x) + self.project(x))
    return self.head(x:mean({ 3, 4 }))
  end
  local model = Net():to("cuda", precision)
  local opt = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9, weight_decay = 5e-4 })
  local x, target = gb.randn(4, 8, 16, 16), gb.arange(4, { dtype = "int64" })
  return function()
    opt:zero_grad()
    amp.autocast(precision, function() return F.cross_entropy(model(x), target) end):backward()
    opt:step()
  end
end

-- Launches by op and kernel: { [name] = { launches, bytes } }, and the names in the order of their first launch.
local function sums_of(list)
  local sums, names = {}, {}
  for _, l in ipairs(list) do
    local name = l.op .. ", " .. l.kernel
    if not sums[name] then
      sums[name] = { launches = 0, bytes = 0 }
      names[#names + 1] = name
    end
    sums[name].launches, sums[name].bytes = sums[name].launches + 1, sums[name].bytes + l.bytes
  end
  return sums, names
end

-- ====}

-- {==== formulas ====

-- Rows of threads that keep sums of their own in the gradient of a norm: workers_of in cuda/norm.cu.
local function workers(z)
  local threads = z.C <= 128 and 32 or (z.C + 16 * 32 - 1) // (16 * 32) * 32
  return math.min(z.B * z.T, 65536 // threads)
end

-- The terms of formulas. P: parameters. W: see above. U: ids that occur, at most.
local terms = {
  ["1"] = function() return 1 end, L = function(z) return z.L end, C = function(z) return z.C end,
  LC = function(z) return z.L * z.C end, LCC = function(z) return z.L * z.C * z.C end,
  VC = function(z) return z.V * z.C end, TC = function(z) return z.T * z.C end,
  BT = function(z) return z.B * z.T end, LBT = function(z) return z.L * z.B * z.T end,
  BTC = function(z) return z.B * z.T * z.C end, LBTC = function(z) return z.L * z.B * z.T * z.C end,
  BTV = function(z) return z.B * z.T * z.V end, WC = function(z) return workers(z) * z.C end,
  LWC = function(z) return z.L * workers(z) * z.C end, UC = function(z) return math.min(z.B * z.T, z.V) * z.C end,
  P = function(z) return z.V * z.C + z.T * z.C + z.L * (12 * z.C * z.C + 13 * z.C) + 2 * z.C end,
}
local term_names = { "1", "L", "C", "BT", "LBT", "LC", "WC", "LWC", "TC", "UC", "VC", "BTC", "LBTC", "LCC", "BTV", "P" }

-- "2 LBTC + 0.5 C" at a size; "at most 2" where it hangs on more than these sizes.
local function evaluate(formula, z)
  local sum = 0
  for number, name in formula:gmatch("(%d[%d.]*) ?(%u*)") do
    sum = sum + tonumber(number) * (name == "" and 1 or terms[name](z))
  end
  return sum
end

-- What may lie between a formula and what was measured: rounding of coefficients, and sectors that are touched in part.
local function slack(sum) return 0.01 * sum.bytes + 96 * sum.launches + 1024 end

-- Solve a small system by elimination; nil: it has no one solution.
local function solve(a, b)
  local n = #b
  for i = 1, n do
    local best = i
    for r = i + 1, n do if math.abs(a[r][i]) > math.abs(a[best][i]) then best = r end end
    if math.abs(a[best][i]) < 1e-9 then return nil end
    a[i], a[best], b[i], b[best] = a[best], a[i], b[best], b[i]
    for r = i + 1, n do
      local f = a[r][i] / a[i][i]
      for c = i, n do a[r][c] = a[r][c] - f * a[i][c] end
      b[r] = b[r] - f * b[i]
    end
  end
  local x = {}
  for i = n, 1, -1 do
    local sum = b[i]
    for c = i + 1, n do sum = sum - a[i][c] * x[c] end
    x[i] = sum / a[i][i]
  end
  return x
end

-- The coefficients of these terms that come nearest, relative to each value; nil where one is not positive.
local function fit(chosen, sizes, values)
  local a, b = {}, {}
  for i = 1, #chosen do
    a[i], b[i] = {}, 0
    for j = 1, #chosen do a[i][j] = 0 end
    for s, z in ipairs(sizes) do
      local weight = 1 / math.max(values[s], 1)
      local own = terms[chosen[i]](z) * weight
      b[i] = b[i] + own * values[s] * weight
      for j = 1, #chosen do a[i][j] = a[i][j] + own * terms[chosen[j]](z) * weight end
    end
  end
  local x = solve(a, b)
  for i = 1, x and #x or 0 do if x[i] <= 0 then return nil end end
  return x
end

-- The formula of the fewest terms, at most four, that gives every value; of equally many the one that comes nearest.
-- Of a kernel without workers those terms could be mistaken for others.
local function find_formula(sizes, values, allowed, has_workers)
  local best, nearest
  local function try(chosen)
    local x = fit(chosen, sizes, values)
    if not x then return end
    local parts = {}
    for i, name in ipairs(chosen) do
      local text = (x[i] >= 1000 and "%.0f" or "%.4g"):format(x[i])
      if x[i] < 1e-3 then return end
      parts[#parts + 1] = name == "1" and text or text .. " " .. name
    end
    local formula, worst = table.concat(parts, " + "), 0
    for s, z in ipairs(sizes) do
      worst = math.max(worst, math.abs(evaluate(formula, z) - values[s]) / allowed[s])
    end
    if worst <= 1 and (not nearest or worst < nearest) then best, nearest = formula, worst end
  end
  local function extend(chosen, from, most)
    if #chosen == most then return try(chosen) end
    for i = from, #term_names do
      if has_workers or not term_names[i]:find("W") then
        chosen[#chosen + 1] = term_names[i]
        extend(chosen, i + 1, most)
        chosen[#chosen] = nil
      end
    end
  end
  for most = 1, 4 do
    extend({}, 1, most)
    if best then return best end
  end
  return nil
end

-- ====}

-- {==== the table ====

local large = { L = 12, B = 16, T = 1024, C = 768, V = 50304 } -- GPT-2 124M, a batch of 16

-- What a step could do without, and how.
local avoidable = {
  { "backward: add,", "sums of gradients could be taken where the second one is made" },
  { "backward: cast,", "the loss's gradient could be written in the dtype that takes it" },
  { "backward: copy,", "a gradient could be written where it is kept" },
  { "backward: mul,", "gradients of the loss are made before their factor is known" },
  { "backward: embedding_backward, fill", "a gradient could be written where it is kept" },
}
local function how_to_avoid(name)
  for _, row in ipairs(avoidable) do
    if name:sub(1, #row[1]) == row[1] then return row[2] end
  end
  return nil
end

-- Rows of the table by name: { launches, bytes }, formulas both, and the launches of the residual network.
local function read_table()
  local rows, net = {}, {}
  for line in io.lines(TABLE) do
    local name, launches, bytes = line:match("^| ([^|]-) | ([^|]-) | ([^|]-) |")
    local of_net, count = line:match("^| ([^|]-) | (%d+) |\n?$")
    if of_net then net[of_net] = tonumber(count)
    elseif name and launches:match("%d") and bytes:match("%d") then
      rows[name] = { launches = launches, bytes = bytes }
    end
  end
  return rows, net
end

local function gigabytes(bytes) return ("%.3f"):format(bytes / 1e9) end

local page_head = [[
# What a training step moves

Measured on the emulated device by traffic.lua, which says how, and written by it with `--write`. Every launch is
charged with each sector of 32 bytes that it reads, once, and with each that it writes, once; products, attention
forward and convolutions, which libraries do, with their operands. Tiles that a kernel reads again, mostly from the L2
cache, and sorts of ids are not in it.

## GPT-2

As recipes/gpt2.lua trains it, bf16-mixed, AdamW, clipped. L layers, B sequences of T tokens, C features, V ids, P
parameters; W rows of threads sum up a norm's gradients (at most 1,024 at 768 features); U ids that occur. The last
three columns are of 124M: L = 12, B = 16, T = 1,024, C = 768, V = 50,304, with linear_cross_entropy in one chunk of
rows, as memory allows; each one more adds four launches, and reads and writes its gradient of the weight once more.
A step whose norm is above the limit moves 8 bytes a parameter more, in clip_kernel.

]]
local net_head = [[

## A residual network

Two blocks, channels last, bf16-mixed, SGD. Launches of convolutions beside the library's are copies between layouts.

| op, kernel | launches |
|---|---:|
]]

local function write_table(rows, names, net, net_names)
  local out <close> = assert(io.open(TABLE, "w"))
  local launches, moved, least = 0, 0, 0
  local lines, notes, nets = {}, {}, {}
  for _, name in ipairs(names) do
    local count, bytes = evaluate(rows[name].launches, large), evaluate(rows[name].bytes, large)
    local why = how_to_avoid(name)
    launches, moved, least = launches + count, moved + bytes, least + (why and 0 or bytes)
    lines[#lines + 1] = ("| %s | %s | %s | %d | %s | %s |\n"):format(name, rows[name].launches, rows[name].bytes, count,
      gigabytes(bytes), gigabytes(why and 0 or bytes))
    if why then notes[#notes + 1] = ("- %s: %s.\n"):format(name, why) end
  end
  for _, name in ipairs(net_names) do nets[#nets + 1] = ("| %s | %d |\n"):format(name, net[name].launches) end
  out:write(page_head, ("**%d launches, %s GB; without what could be avoided %s GB: %.2f times that.**\n\n"):format(
    launches, gigabytes(moved), gigabytes(least), moved / least),
    "| op, kernel | launches | bytes | launches | GB | least GB |\n|---|---|---|---:|---:|---:|\n", table.concat(lines),
    "\nWhat has a least of 0:\n\n", table.concat(notes), net_head, table.concat(nets))
end

-- ====}

if not FILE then error("traffic: GIBBOUS_CUDA_TRAFFIC_FILE names no file", 0) end

local net, net_names = sums_of(launches_of(resnet_step()))

if arg[1] == "--write" then
  local sizes = {
    { L = 1, B = 2, T = 64, C = 64, V = 256 }, { L = 2, B = 2, T = 64, C = 64, V = 128 },
    { L = 3, B = 2, T = 96, C = 64, V = 320 }, { L = 1, B = 3, T = 64, C = 128, V = 192 },
    { L = 2, B = 2, T = 32, C = 192, V = 128 }, { L = 2, B = 3, T = 32, C = 128, V = 512 },
    { L = 1, B = 96, T = 32, C = 64, V = 64 }, { L = 3, B = 2, T = 32, C = 128, V = 384 },
  }
  local measured, names, rows = {}, nil, {}
  for s, z in ipairs(sizes) do
    print("measuring size " .. s)
    measured[s], names = sums_of(launches_of(gpt2_step(z)))
  end
  for _, name in ipairs(names) do
    local bytes, counts, slacks, halves = {}, {}, {}, {}
    for s in ipairs(sizes) do
      local sum = measured[s][name] or error(name .. " is not launched at size " .. s, 0)
      bytes[s], counts[s], slacks[s], halves[s] = sum.bytes, sum.launches, slack(sum) / 5, 0.1
    end
    rows[name] = { launches = find_formula(sizes, counts, halves) or "at most " .. math.max(table.unpack(counts)),
      bytes = find_formula(sizes, bytes, slacks, name:find("norm_backward"))
        or "at most " .. math.max(table.unpack(bytes)) }
  end
  return write_table(rows, names, net, net_names)
end

local rows, net_rows = read_table()

-- What was counted may be at most what the table says. Where it is less the table is to be renewed, which is no fault.
local function expect_at_most(what, counted, said, allowed)
  if counted < said - allowed then print(("%s: %.0f, the table says %.0f"):format(what, counted, said)) end
  local over = ("%s: %.0f, the table says %.0f"):format(what, counted, said)
  expect(counted <= said + allowed and what or over):to_be(what)
end

describe("a step of GPT-2", function()
  for _, z in ipairs { { L = 1, B = 2, T = 64, C = 64, V = 128 }, { L = 2, B = 3, T = 32, C = 128, V = 192 } } do
    local sums, names = sums_of(launches_of(gpt2_step(z)))
    it(("launches and moves no more than the table says, with %d layers"):format(z.L), function()
      for _, name in ipairs(names) do
        local sum, row = sums[name], rows[name] or { launches = "0", bytes = "0" }
        expect_at_most("launches of " .. name, sum.launches, evaluate(row.launches, z), 0)
        expect_at_most("bytes of " .. name, sum.bytes, evaluate(row.bytes, z), slack(sum))
      end
    end)
  end
end)

describe("a step of a residual network", function()
  it("launches no more than the table says", function()
    for _, name in ipairs(net_names) do
      expect_at_most("launches of " .. name, net[name].launches, net_rows[name] or 0, 0)
    end
  end)
end)

gb.test.finish()
