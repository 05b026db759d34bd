-- traffic.lua - what a training step launches, and what its launches read and write of device memory, compared with
-- the table in traffic.md, so that traffic which creeps in fails. On the emulated device, in its build that counts
-- (traffic.cc).
--
--   build-emulate/gibbous tests/cuda_on_cpu/traffic.lua [--write]     (docs/cuda.md has the variables it wants)
--
-- Steps of a small GPT-2 as recipes/gpt2.lua makes it, of a narrow ResNet-50 and of a small language model of LSTMs, in
-- bf16-mixed, are measured at two sizes each. The table has a formula of the sizes for each kernel of each op; what
-- they give for GPT-2 124M, for ResNet-50 and for LSTMs of 512 features stands beside them. --write measures more sizes
-- and finds the formulas: of each row the fewest terms, of those below, that give all of them. What convolutions launch
-- beside the library's is a copy of a layout.

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

-- ResNet-50 as torchvision has it, of z.W channels (of 64) behind its first convolution, and its step on z.N pictures
-- of z.S x z.S.
local function resnet50_step(z)
  gb.manual_seed(2)
  local precision = amp.precision("bf16-mixed")
  local function conv(inputs, outputs, kernel, stride, activation)
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, { stride = stride, padding = kernel // 2, bias = false }),
      nn.BatchNorm2d(outputs, { activation = activation }))
  end
  local Block = nn.Module:extend("Block")
  function Block:init(inputs, width, stride)
    self.narrow, self.middle = conv(inputs, width, 1, 1, "relu"), conv(width, width, 3, stride, "relu")
    self.wide = conv(width, 4 * width, 1, 1, "relu")
    if stride ~= 1 or inputs ~= 4 * width then self.project = conv(inputs, 4 * width, 1, stride) end
  end
  function Block:forward(x)
    local y = self.wide[1](self.middle(self.narrow(x)))
    return self.wide[2](y, self.project and self.project(x) or x)
  end
  local Net = nn.Module:extend("Net")
  function Net:init()
    self.stem, self.pool = conv(3, z.W, 7, 2, "relu"), nn.MaxPool2d(3, { stride = 2, padding = 1 })
    self.blocks = {}
    local inputs = z.W
    for stage, count in ipairs { 3, 4, 6, 3 } do
      local width = z.W << stage - 1
      for i = 1, count do
        self.blocks[#self.blocks + 1] = Block(inputs, width, i == 1 and stage > 1 and 2 or 1)
        inputs = 4 * width
      end
    end
    self.head = nn.Linear(inputs, 1000)
  end
  function Net:forward(x)
    x = self.pool(self.stem(x))
    for _, block in ipairs(self.blocks) do x = block(x) end
    return self.head(x:mean({ 3, 4 }))
  end
  local model = Net():to("cuda", precision)
  local opt = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9, weight_decay = 5e-5 })
  local x, target = gb.randn(z.N, 3, z.S, z.S), gb.arange(z.N, { dtype = "int64" })
  return function()
    opt:zero_grad()
    amp.autocast(precision, function() return F.cross_entropy(model(x), target) end):backward()
    opt:step()
  end
end

-- A language model of z.L layers of LSTMs of z.C features over z.V ids, and its step on z.B sequences of z.T.
local function lstm_step(z)
  gb.manual_seed(3)
  local precision = amp.precision("bf16-mixed")
  local Net = nn.Module:extend("Net")
  function Net:init()
    self.tokens, self.lstm = nn.Embedding(z.V, z.C), nn.LSTM(z.C, z.C, { num_layers = z.L })
    self.head = nn.Linear(z.C, z.V, { bias = false })
  end
  function Net:loss(ids, targets)
    return F.linear_cross_entropy((self.lstm(self.tokens(ids))):flatten(1, 2), self.head.weight, targets:flatten())
  end
  local model = Net():to("cuda", precision)
  local opt, parameters = optim.AdamW(model:parameters(), { lr = 1e-3 }), model:parameters()
  local ids = gb.arange(z.T * z.B, { dtype = "int64" }):remainder(z.V):reshape(z.T, z.B)
  return function()
    opt:zero_grad()
    amp.autocast(precision, function() return model:loss(ids, ids) end):backward()
    nn.utils.clip_grad_norm_(parameters, 1.0)
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

-- The terms of formulas by name, and their names in the order in which they are tried.
local function terms_of(list)
  local terms, names = {}, {}
  for i, term in ipairs(list) do terms[term[1]], names[i] = term[2], term[1] end
  return { of = terms, names = names }
end

-- P: parameters. W: see above. U: ids that occur, at most.
local of_gpt2 = terms_of {
  { "1", function() return 1 end }, { "L", function(z) return z.L end }, { "C", function(z) return z.C end },
  { "BT", function(z) return z.B * z.T end }, { "LBT", function(z) return z.L * z.B * z.T end },
  { "LC", function(z) return z.L * z.C end }, { "WC", function(z) return workers(z) * z.C end },
  { "LWC", function(z) return z.L * workers(z) * z.C end }, { "TC", function(z) return z.T * z.C end },
  { "UC", function(z) return math.min(z.B * z.T, z.V) * z.C end }, { "VC", function(z) return z.V * z.C end },
  { "BTC", function(z) return z.B * z.T * z.C end }, { "LBTC", function(z) return z.L * z.B * z.T * z.C end },
  { "LCC", function(z) return z.L * z.C * z.C end }, { "BTV", function(z) return z.B * z.T * z.V end },
  { "P", function(z) return z.V * z.C + z.T * z.C + z.L * (12 * z.C * z.C + 13 * z.C) + 2 * z.C end },
}

-- Parameters of ResNet-50.
local function resnet50_parameters(z)
  local sum, inputs = 3 * 7 * 7 * z.W + 2 * z.W, z.W
  for stage, count in ipairs { 3, 4, 6, 3 } do
    local width = z.W << stage - 1
    for i = 1, count do
      sum = sum + inputs * width + 9 * width * width + 4 * width * width + 2 * 6 * width
      if i == 1 then sum = sum + 4 * inputs * width + 2 * 4 * width end
      inputs = 4 * width
    end
  end
  return sum + 1000 * inputs + 1000
end

-- Launches do not depend on the sizes. P: parameters.
local of_resnet50 = terms_of {
  { "1", function() return 1 end }, { "W", function(z) return z.W end }, { "N", function(z) return z.N end },
  { "NW", function(z) return z.N * z.W end }, { "NSS", function(z) return z.N * z.S * z.S end },
  { "WW", function(z) return z.W * z.W end }, { "NSSW", function(z) return z.N * z.S * z.S * z.W end },
  { "P", resnet50_parameters },
}

-- P: parameters. W: those of the recurrent layers. U: ids that occur, at most.
local of_lstm = terms_of {
  { "1", function() return 1 end }, { "L", function(z) return z.L end }, { "C", function(z) return z.C end },
  { "BT", function(z) return z.B * z.T end }, { "LC", function(z) return z.L * z.C end },
  { "LBC", function(z) return z.L * z.B * z.C end },
  { "UC", function(z) return math.min(z.B * z.T, z.V) * z.C end }, { "VC", function(z) return z.V * z.C end },
  { "BTC", function(z) return z.B * z.T * z.C end }, { "LBTC", function(z) return z.L * z.B * z.T * z.C end },
  { "BTV", function(z) return z.B * z.T * z.V end },
  { "W", function(z) return z.L * (8 * z.C * z.C + 8 * z.C) end },
  { "P", function(z) return 2 * z.V * z.C + z.L * (8 * z.C * z.C + 8 * z.C) end },
}

-- "2 LBTC + 0.5 C" at a size; "at most 2" where it hangs on more than these sizes.
local function evaluate(terms, formula, z)
  local sum = 0
  for number, name in formula:gmatch("(%d[%d.]*) ?(%u*)") do
    sum = sum + tonumber(number) * (name == "" and 1 or terms.of[name](z))
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
local function fit(terms, chosen, sizes, values)
  local a, b = {}, {}
  for i = 1, #chosen do
    a[i], b[i] = {}, 0
    for j = 1, #chosen do a[i][j] = 0 end
    for s, z in ipairs(sizes) do
      local weight = 1 / math.max(values[s], 1)
      local own = terms.of[chosen[i]](z) * weight
      b[i] = b[i] + own * values[s] * weight
      for j = 1, #chosen do a[i][j] = a[i][j] + own * terms.of[chosen[j]](z) * weight end
    end
  end
  local x = solve(a, b)
  for i = 1, x and #x or 0 do if x[i] <= 0 then return nil end end
  return x
end

-- The formula of the fewest terms, at most four, that gives every value; of equally many the one that comes nearest.
-- Of a kernel without workers those terms could be mistaken for others.
local function find_formula(terms, sizes, values, allowed, has_workers)
  local best, nearest
  local function try(chosen)
    local x = fit(terms, chosen, sizes, values)
    if not x then return end
    local parts = {}
    for i, name in ipairs(chosen) do
      local text = (x[i] >= 1000 and "%.0f" or "%.4g"):format(x[i])
      if x[i] < 1e-3 then return end
      parts[#parts + 1] = name == "1" and text or text .. " " .. name
    end
    local formula, worst = table.concat(parts, " + "), 0
    for s, z in ipairs(sizes) do
      worst = math.max(worst, math.abs(evaluate(terms, formula, z) - values[s]) / allowed[s])
    end
    if worst <= 1 and (not nearest or worst < nearest) then best, nearest = formula, worst end
  end
  local function extend(chosen, from, most)
    if #chosen == most then return try(chosen) end
    for i = from, #terms.names do
      if has_workers or not terms.names[i]:find("^L?WC$") then
        chosen[#chosen + 1] = terms.names[i]
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

-- What is measured: a model's step, its terms, the sizes that the table is of and those that tests measure, and the
-- sizes that formulas are found from.
local models = {
  { title = "GPT-2", step = gpt2_step, terms = of_gpt2,
    large = { L = 12, B = 16, T = 1024, C = 768, V = 50304 }, -- GPT-2 124M, a batch of 16
    tested = { { L = 1, B = 2, T = 64, C = 64, V = 128 }, { L = 2, B = 3, T = 32, C = 128, V = 192 } },
    sizes = {
      { L = 1, B = 2, T = 64, C = 64, V = 256 }, { L = 2, B = 2, T = 64, C = 64, V = 128 },
      { L = 3, B = 2, T = 96, C = 64, V = 320 }, { L = 1, B = 3, T = 64, C = 128, V = 192 },
      { L = 2, B = 2, T = 32, C = 192, V = 128 }, { L = 2, B = 3, T = 32, C = 128, V = 512 },
      { L = 1, B = 96, T = 32, C = 64, V = 64 }, { L = 3, B = 2, T = 32, C = 128, V = 384 },
    } },
  { title = "ResNet-50", step = resnet50_step, terms = of_resnet50,
    large = { N = 256, S = 224, W = 64 },
    tested = { { N = 2, S = 64, W = 16 }, { N = 3, S = 96, W = 16 } },
    sizes = {
      { N = 2, S = 64, W = 16 }, { N = 4, S = 64, W = 16 }, { N = 2, S = 128, W = 16 }, { N = 2, S = 64, W = 32 },
      { N = 3, S = 96, W = 16 }, { N = 3, S = 64, W = 24 }, { N = 2, S = 96, W = 24 }, { N = 16, S = 64, W = 16 },
    } },
  { title = "LSTM", step = lstm_step, terms = of_lstm,
    large = { L = 2, B = 32, T = 64, C = 512, V = 33280 },
    tested = { { L = 1, B = 4, T = 8, C = 32, V = 64 }, { L = 2, B = 3, T = 8, C = 64, V = 192 } },
    sizes = {
      { L = 1, B = 4, T = 8, C = 32, V = 64 }, { L = 2, B = 3, T = 8, C = 64, V = 192 },
      { L = 2, B = 4, T = 8, C = 32, V = 256 }, { L = 3, B = 8, T = 4, C = 32, V = 64 },
      { L = 1, B = 2, T = 32, C = 64, V = 128 }, { L = 2, B = 16, T = 4, C = 32, V = 128 },
      { L = 1, B = 8, T = 16, C = 96, V = 64 }, { L = 4, B = 2, T = 16, C = 32, V = 320 },
      { L = 1, B = 64, T = 32, C = 32, V = 64 },
    } },
}

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

-- Rows of the table by title and name: { launches, bytes }, formulas both.
local function read_table()
  local tables, rows = {}, nil
  for line in io.lines(TABLE) do
    local title = line:match("^## (.*)$")
    if title then
      rows = {}
      tables[title] = rows
    end
    local name, launches, bytes = line:match("^| ([^|]-) | ([^|]-) | ([^|]-) |")
    if name and launches:match("%d") and bytes:match("%d") then rows[name] = { launches = launches, bytes = bytes } end
  end
  return tables
end

local function gigabytes(bytes) return ("%.3f"):format(bytes / 1e9) end

local page_head = [[
# What a training step moves

Measured on the emulated device by traffic.lua, which says how, and written by it with `--write`. Every launch is
charged with each sector of 32 bytes that it reads, once, and with each that it writes, once; products, attention
forward and convolutions, which libraries do, with their operands. Tiles that a kernel reads again, mostly from the L2
cache, and sorts of ids are not in it.
]]
local texts = {
  ["GPT-2"] = [[
As recipes/gpt2.lua trains it, bf16-mixed, AdamW, clipped. L layers, B sequences of T tokens, C features, V ids, P
parameters; W rows of threads sum up a norm's gradients (at most 1,024 at 768 features); U ids that occur. The last
three columns are of 124M: L = 12, B = 16, T = 1,024, C = 768, V = 50,304, with linear_cross_entropy in one chunk of
rows, as memory allows; each one more adds four launches, and reads and writes its gradient of the weight once more.
A step whose norm is above the limit moves 8 bytes a parameter more, in clip_kernel.
]],
  ["ResNet-50"] = [[
torchvision's model, channels last, bf16-mixed, SGD with momentum. N pictures of S x S, W channels behind the first
convolution, 1,000 classes. The last three columns are of N = 256, S = 224, W = 64. Launches of convolutions beside the
library's are copies between layouts.
]],
  ["LSTM"] = [[
A language model, bf16-mixed, AdamW, clipped. L layers of C features, B sequences of T steps, V ids, P parameters, W of
them the recurrent layers'; U ids that occur. The last three columns are of L = 2, B = 32, T = 64, C = 512, V = 33,280.
A call of cuDNN's recurrent layers counts as one launch, though it makes several for each step, and with what it reads
and writes at least: operands, weights once, and what it keeps for backward. Weights are packed once a step (rnn_pack),
and each gradient is brought from the packed one to where its sum is kept (rnn_unpack).
]],
}

local function write_section(out, model, rows, names)
  local launches, moved, least = 0, 0, 0
  local lines, notes = {}, {}
  for _, name in ipairs(names) do
    local count = evaluate(model.terms, rows[name].launches, model.large)
    local bytes = evaluate(model.terms, rows[name].bytes, model.large)
    local why = how_to_avoid(name)
    launches, moved, least = launches + count, moved + bytes, least + (why and 0 or bytes)
    lines[#lines + 1] = ("| %s | %s | %s | %.0f | %s | %s |\n"):format(name, rows[name].launches, rows[name].bytes,
      count, gigabytes(bytes), gigabytes(why and 0 or bytes))
    if why then notes[#notes + 1] = ("- %s: %s.\n"):format(name, why) end
  end
  out:write("\n## ", model.title, "\n\n", texts[model.title],
    ("\n**%.0f launches, %s GB; without what could be avoided %s GB: %.2f times that.**\n\n"):format(launches,
      gigabytes(moved), gigabytes(least), moved / least),
    "| op, kernel | launches | bytes | launches | GB | least GB |\n|---|---|---|---:|---:|---:|\n", table.concat(lines),
    "\nWhat has a least of 0:\n\n", table.concat(notes))
end

-- Measure a model at its sizes and find the formulas: rows by name, and the names.
local function find_rows(model)
  local measured, names, rows = {}, nil, {}
  for s, z in ipairs(model.sizes) do
    print(("measuring %s, size %d"):format(model.title, s))
    measured[s], names = sums_of(launches_of(model.step(z)))
  end
  for _, name in ipairs(names) do
    local bytes, counts, slacks, halves = {}, {}, {}, {}
    for s in ipairs(model.sizes) do
      local sum = measured[s][name] or error(name .. " is not launched at size " .. s, 0)
      bytes[s], counts[s], slacks[s], halves[s] = sum.bytes, sum.launches, slack(sum) / 5, 0.1
    end
    rows[name] = { launches = find_formula(model.terms, model.sizes, counts, halves)
        or "at most " .. math.max(table.unpack(counts)),
      bytes = find_formula(model.terms, model.sizes, bytes, slacks, name:find("norm_backward"))
        or "at most " .. math.max(table.unpack(bytes)) }
  end
  return rows, names
end

-- ====}

if not FILE then error("traffic: GIBBOUS_CUDA_TRAFFIC_FILE names no file", 0) end

if arg[1] == "--write" then
  local sections = {}
  for i, model in ipairs(models) do sections[i] = { find_rows(model) } end
  local out <close> = assert(io.open(TABLE, "w"))
  out:write(page_head)
  for i, model in ipairs(models) do write_section(out, model, table.unpack(sections[i])) end
  return
end

local tables = read_table()

-- What was counted may be at most what the table says. Where it is less the table is to be renewed, which is no fault.
local function expect_at_most(what, counted, said, allowed)
  if counted < said - allowed then print(("%s: %.0f, the table says %.0f"):format(what, counted, said)) end
  local over = ("%s: %.0f, the table says %.0f"):format(what, counted, said)
  expect(counted <= said + allowed and what or over):to_be(what)
end

for _, model in ipairs(models) do
  local rows = tables[model.title] or error("the table has no " .. model.title, 0)
  describe("a step of " .. model.title, function()
    for i, z in ipairs(model.tested) do
      local sums, names = sums_of(launches_of(model.step(z)))
      it(("launches and moves no more than the table says, at size %d"):format(i), function()
        for _, name in ipairs(names) do
          local sum, row = sums[name], rows[name] or { launches = "0", bytes = "0" }
          expect_at_most("launches of " .. name, sum.launches, evaluate(model.terms, row.launches, z), 0)
          expect_at_most("bytes of " .. name, sum.bytes, evaluate(model.terms, row.bytes, z), slack(sum))
        end
      end)
    end
  end)
end

gb.test.finish()
