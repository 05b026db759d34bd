-- cases.lua - our half of the GPU's table: `gibbous cases.lua GROUP [DEVICE [DIVISOR]]` prints a line "name <tab>
-- value" per case, seconds unless the name says otherwise. peer.py prints the same names for PyTorch. DIVISOR makes
-- every size smaller, to try the script where there is no GPU.
--
-- A kernel's time is that of many calls between two synchronisations, divided by their number: launches overlap with
-- the work before them, so kernels that take longer than a launch are measured and not the launches. Median of seven
-- such rounds, after one that is not counted.

local gb = require "gibbous"
local nn, F, amp, optim = gb.nn, gb.nn.functional, gb.amp, gb.optim

local group, device, divisor = arg[1], arg[2] or "cuda", tonumber(arg[3] or "1")
gb.manual_seed(1)

local function wait()
  if device ~= "cpu" then gb.cuda.synchronize() end
end

local function small(n) return math.max(n // divisor, 8) end

-- The median seconds of one call of f; `calls` of them make a round.
local function time_of(f, calls)
  local times = {}
  for round = 0, 7 do
    wait()
    local start = gb.clock()
    for _ = 1, calls do f() end
    wait()
    if round > 0 then times[round] = (gb.clock() - start) / calls end
  end
  table.sort(times)
  return times[4]
end

local function print_value(name, value) print(("%s\t%.9g"):format(name, value)) end
local function report(name, f, calls) print_value(name, time_of(f, divisor > 1 and 2 or calls or 20)) end
local function randn(dtype, ...) return gb.randn({ ... }, { device = device }):to(dtype) end

local groups = {}

-- 256 MiB in float32, 128 in bfloat16: far beyond any cache. Weights and statistics are small beside them.
function groups.kernels()
  local rows, columns = small(65536), 1024
  local x, y = randn("float32", rows, columns), randn("float32", rows, columns)
  local half, other = x:to("bfloat16"), y:to("bfloat16")
  local weight, bias = gb.ones({ columns }, { device = device }), gb.zeros({ columns }, { device = device })
  local classes = gb.randint(0, columns, { rows }, { device = device })
  report("copy", function() y:copy_(x) end)
  report("copy bfloat16", function() other:copy_(half) end)
  report("add bfloat16", function() local _ <close> = half + other end)
  report("gelu bfloat16", function() local _ <close> = F.gelu(half, { approximate = "tanh" }) end)
  report("cast to bfloat16", function() local _ <close> = x:to("bfloat16") end)
  report("cast to float32", function() local _ <close> = half:to("float32") end)
  for _, case in ipairs { { "", x }, { " bfloat16", half } } do
    local suffix, input = case[1], case[2]
    local w, b = weight:to(input.dtype), bias:to(input.dtype)
    report("layer_norm" .. suffix, function() local _ <close> = F.layer_norm(input, { columns }, w, b) end)
    report("softmax" .. suffix, function() local _ <close> = input:softmax(-1) end)
    report("cross_entropy" .. suffix, function() local _ <close> = F.cross_entropy(input, classes) end)
    local leaf, grad = input:clone():requires_grad_(true), input:clone()
    local lw, lb = w:clone():requires_grad_(true), b:clone():requires_grad_(true)
    report("layer_norm and backward" .. suffix, function()
      leaf.grad, lw.grad, lb.grad = nil, nil, nil
      F.layer_norm(leaf, { columns }, lw, lb):backward(grad)
    end)
  end
  local p = randn("float32", rows, columns):requires_grad_(true)
  p.grad = randn("float32", rows, columns)
  local opt = optim.AdamW({ p }, { lr = 1e-3 })
  report("AdamW", function() opt:step() end)
end

function groups.gemm()
  for _, n in ipairs { 8192, 4096, 2048 } do
    for _, dtype in ipairs { "bfloat16", "float16" } do
      local a, b = randn(dtype, small(n), small(n)), randn(dtype, small(n), small(n))
      report(("matmul %d %s"):format(n, dtype), function() local _ <close> = a:matmul(b) end)
    end
  end
end

-- 16,384 tokens, 2,048 wide, causal.
function groups.attention()
  for _, head in ipairs { 64, 128 } do
    for _, time in ipairs { 2048, 4096, 8192 } do
      local t, heads, batch = small(time), 2048 // head, math.max(16384 // time, 1)
      local q, k, v = randn("bfloat16", batch, heads, t, head), randn("bfloat16", batch, heads, t, head),
        randn("bfloat16", batch, heads, t, head)
      local options = { is_causal = true }
      local name = ("attention head_dim %d time %d"):format(head, time)
      report(name, function() local _ <close> = F.scaled_dot_product_attention(q, k, v, options) end)
      for _, p in ipairs { q, k, v } do p:requires_grad_(true) end
      local grad = randn("bfloat16", batch, heads, t, head)
      report(name .. " and backward", function()
        q.grad, k.grad, v.grad = nil, nil, nil
        F.scaled_dot_product_attention(q, k, v, options):backward(grad)
      end)
    end
  end
end

-- The host's time for a call, the queue not full: 200 calls after a synchronisation, which is not counted.
function groups.host()
  local x, y = randn("bfloat16", 1024), randn("bfloat16", 1024)
  local a, b = randn("bfloat16", 64, 64), randn("bfloat16", 64, 64)
  local function host(name, f)
    local times = {}
    for round = 0, 7 do
      wait()
      local start = gb.clock()
      for _ = 1, 200 do f() end
      if round > 0 then times[round] = (gb.clock() - start) / 200 end
    end
    table.sort(times)
    print_value(name, times[4])
  end
  gb.no_grad(function()
    host("host time of x + y", function() local _ <close> = x + y end)
    host("host time of a small matmul", function() local _ <close> = a:matmul(b) end)
  end)
end

-- recipes/char_gpt.lua's model and step at its own size, on ids of a vocabulary of 65. The step waits for nothing, so
-- that it can be captured.
local function char_gpt_step()
  local width, heads, layers, block, vocabulary = 128, 4, 4, 64, 65
  local precision = amp.precision("bf16-mixed")
  local Block = nn.Module:extend("Block")
  function Block:init()
    self.norm1, self.norm2 = nn.LayerNorm(width, { bias = false }), nn.LayerNorm(width, { bias = false })
    self.attention = nn.MultiheadAttention(width, heads, { bias = false, is_causal = true })
    self.mlp = nn.MLP(width, 4 * width, { bias = false, activation = "gelu" })
  end
  function Block:forward(x)
    local y, sum = self.norm2:add(self.attention(self.norm1(x)), x)
    return sum + self.mlp(y)
  end
  local GPT = nn.Module:extend("GPT")
  function GPT:init()
    self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(block, width)
    self.blocks, self.norm = {}, nn.LayerNorm(width, { bias = false })
    for i = 1, layers do self.blocks[i] = Block() end
  end
  function GPT:loss(ids, targets)
    local x = self.tokens(ids) + self.positions(gb.arange(block, { device = ids.device }))
    for _, part in ipairs(self.blocks) do x = part(x) end
    return F.linear_cross_entropy(self.norm(x):flatten(1, 2), self.tokens.weight, targets:flatten())
  end
  local model = GPT():to(device, precision)
  local parameters = model:parameters()
  local opt, scaler = optim.AdamW(parameters, { lr = 1e-3, weight_decay = 0.1 }), amp.GradScaler(precision)
  local ids = gb.randint(0, vocabulary, { 12, block + 1 }, { device = device })
  local function step(x, y)
    opt:zero_grad()
    local loss = amp.autocast(precision, function() return model:loss(x, y) end)
    scaler:scale(loss):backward()
    scaler:unscale_(opt)
    nn.utils.clip_grad_norm_(parameters, 1.0)
    scaler:step(opt)
    scaler:update()
    return loss
  end
  return step, ids:narrow(2, 1, block):contiguous(), ids:narrow(2, 2, block):contiguous()
end

function groups.char_gpt()
  local step, x, y = char_gpt_step()
  report("char_gpt step", function() step(x, y) end, 50)
  if device == "cpu" then return end
  local graph = gb.cuda.graph(step, { x, y })
  report("char_gpt step, graph captured", function() graph(x, y) end, 200)
end

groups[group]()
