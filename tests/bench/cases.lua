-- cases.lua - our half of the table: the groups that are about steps of recipes, products, memory and small calls, as
-- measure.lua says. peer.py prints the same names for PyTorch.

local gb = require "gibbous"
local measure = dofile("tests/bench/measure.lua")
local nn, F, amp, optim = gb.nn, gb.nn.functional, gb.amp, gb.optim
local report, spelled, vocabulary = measure.report, measure.spelled, measure.vocabulary

local groups = {}

-- The products of one step of char_gpt alone: forward, input gradient, weight gradient; attention recomputes its scores
-- once. And the floor of that step: these, and the time of a copy for each byte that what is not a product has to read
-- or write.
function groups.gemms()
  local tokens, width, layers, pairs_of_heads, time, head = 12 * 64, 128, 4, 12 * 4, 64, 32
  local products = {}
  local function add(count, m, k, n, batch)
    local x = batch and gb.randn(batch, m, k) or gb.randn(m, k)
    local y = batch and gb.randn(batch, k, n) or gb.randn(k, n)
    products[#products + 1] = { count, x, y }
  end
  local function linear(count, k, n)
    add(count, tokens, k, n)
    add(count, tokens, n, k)
    add(count, n, tokens, k)
  end
  linear(layers, width, 3 * width)
  linear(layers, width, width)
  linear(layers, width, 4 * width)
  linear(layers, 4 * width, width)
  linear(1, width, vocabulary)
  add(3 * layers, time, head, time, pairs_of_heads)
  add(4 * layers, time, time, head, pairs_of_heads)
  local seconds = report("gemms of char_gpt", function()
    for _, p in ipairs(products) do
      for _ = 1, p[1] do local _ <close> = p[2]:matmul(p[3]) end
    end
  end)
  -- In float32 elements, without what the products read and write themselves. A norm with its residual reads two rows
  -- and writes two, its gradient reads three and writes one; the first norm has no residual, and no residual's gradient
  -- comes to the last. gelu writes its result where the product that made its argument has that in registers, and there
  -- its gradient reads the argument; a loss reads logits and writes their gradient; embeddings are written, and their
  -- gradient is read; a clip reads the gradients and AdamW passes seven times. Softmax, biases, scores of attention and
  -- the tables of embeddings stay in cache. A copy is measured from memory: of what lies in cache until it is read, the
  -- floor says too much.
  local norms, hidden = (16 * layers + 5) * width, layers * 2 * 4 * width
  local parameters = vocabulary * width + time * width + layers * (12 * width * width + 2 * width) + width
  local elements = tokens * (norms + hidden + 2 * width + 2 * vocabulary) + 8 * parameters
  local from, to = gb.randn(1 << 24), gb.empty(1 << 24)
  local copy = report("copy", function() to:copy_(from) end)
  print(("floor of char_gpt\t%.9f"):format(seconds + copy * elements / (2 << 24)))
end

-- One step of recipes/mnist_cnn.lua, batch 64, on random pictures.
function groups.mnist()
  local precision = measure.precision
  local net = nn.Sequential(nn.Conv2d(1, 32, 3, { padding = 1, activation = "relu" }), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, { padding = 1, activation = "relu" }), nn.MaxPool2d(2), nn.Flatten(),
      nn.Linear(64 * 7 * 7, 10))
  net:to("cpu", precision)
  local opt, scaler = optim.AdamW(net:parameters(), { lr = 1e-3 }), amp.GradScaler(precision)
  local x, y = gb.rand(64, 1, 28, 28), gb.randint(0, 10, { 64 })
  report("mnist_cnn " .. spelled, function()
    opt:zero_grad()
    local loss = amp.autocast(precision, function() return F.cross_entropy(net(x), y) end)
    scaler:scale(loss):backward()
    scaler:unscale_(opt)
    nn.utils.clip_grad_norm_(net:parameters(), 1.0)
    scaler:step(opt)
    scaler:update()
  end)
end

function groups.matmul()
  local shapes = { { 256, 256, 256 }, { 512, 512, 512 }, { 1024, 1024, 1024 }, { 2048, 2048, 2048 }, { 333, 777, 555 },
    { 1000, 17, 1000 },
    { 1, 1024, 1024 } }
  for _, s in ipairs(shapes) do
    for _, dtype in ipairs { "float32", "bfloat16", "float16" } do
      local x, y = gb.randn(s[1], s[2]):to(dtype), gb.randn(s[2], s[3]):to(dtype)
      report(("matmul %dx%dx%d %s"):format(s[1], s[2], s[3], dtype), function() local _ <close> = x:matmul(y) end)
    end
  end
end

-- 16 Mi elements: 64 MB in float32.
function groups.memory()
  local rows, columns = 16384, 1024
  local x, y = gb.randn(rows, columns), gb.randn(rows, columns)
  local half, square = x:to("bfloat16"), gb.randn(4096, 4096)
  local weight, bias = gb.ones(columns), gb.zeros(columns)
  local classes = gb.randint(0, columns, { rows })
  report("copy", function() y:copy_(x) end)
  report("add", function() local _ <close> = x + y end)
  report("add bfloat16", function() local _ <close> = half + half end)
  report("add transposed", function() local _ <close> = square + square:transpose(1, 2) end)
  report("cast to bfloat16", function() local _ <close> = x:to("bfloat16") end)
  report("cast to float32", function() local _ <close> = half:to("float32") end)
  local small, image = gb.randn(rows // 2, columns), gb.randn(16, 64, 64, 64)
  report("repeat_interleave", function() local _ <close> = small:repeat_interleave(2, 2) end)
  report("nearest upsampling", function()
    local _ <close> = image:view(16, 64, 64, 1, 64, 1):expand(16, 64, 64, 2, 64, 2):reshape(16, 64, 128, 128)
  end)
  small:free()
  image:free()
  -- what reading alone takes: on some machines it is slower than a copy, byte for byte
  report("amax", function() local _ <close> = x:amax() end)
  report("amax bfloat16", function() local _ <close> = half:amax() end)
  for _, case in ipairs { { "", x }, { " bfloat16", half } } do
    local suffix, input = case[1], case[2]
    local w, b = weight:to(input.dtype), bias:to(input.dtype)
    report("layer_norm" .. suffix, function() local _ <close> = F.layer_norm(input, { columns }, w, b) end)
    report("softmax" .. suffix, function() local _ <close> = input:softmax(-1) end)
    report("cross_entropy" .. suffix, function() local _ <close> = F.cross_entropy(input, classes) end)
    local leaf, grad = input:clone():requires_grad_(true), input:clone()
    local lw, lb = w:clone():requires_grad_(true), b:clone():requires_grad_(true)
    local function twice(name, forward, with)
      report(name .. " and backward" .. suffix, function()
        leaf.grad, lw.grad, lb.grad = nil, nil, nil
        forward():backward(with)
      end)
    end
    twice("layer_norm", function() return F.layer_norm(leaf, { columns }, lw, lb) end, grad)
    twice("softmax", function() return leaf:softmax(-1) end, grad)
    twice("cross_entropy", function() return F.cross_entropy(leaf, classes) end)
  end
  local p = gb.randn(rows, columns):requires_grad_(true)
  p.grad = gb.randn(rows, columns)
  local opt = optim.AdamW({ p }, { lr = 1e-3 })
  report("AdamW", function() opt:step() end)
end

-- From backward to update: 16 Mi gradients, and those of char_gpt. A list with a parameter of nobody in it is measured
-- by a pass of its own.
function groups.clip()
  local gpt, width = { { vocabulary, 128 }, { 64, 128 }, { 128 } }, 128
  for _ = 1, 4 do
    for _, shape in ipairs { { width }, { 3 * width, width }, { width, width }, { width }, { 4 * width, width },
      { width, 4 * width } } do
      gpt[#gpt + 1] = shape
    end
  end
  local clip = nn.utils.clip_grad_norm_
  for _, case in ipairs { { "16 Mi", { { 16384, 1024 } } }, { "char_gpt", gpt } } do
    local list, elements = {}, 0
    for i, shape in ipairs(case[2]) do
      list[i] = nn.Parameter(gb.randn(shape))
      elements = elements + list[i]:numel()
    end
    local opt = optim.AdamW(list, { lr = 1e-3 })
    local stranger = nn.Parameter(gb.zeros(1))
    stranger.grad = gb.zeros(1)
    local all = table.move(list, 1, #list, 1, {})
    all[#all + 1] = stranger
    local function passes(name, f, before)
      local scaler, used = amp.GradScaler { scale = 1024 }, false
      report(case[1] .. ": " .. name, function() f(scaler) end, 1, function()
        if used then scaler:update() end
        used = true
        opt:zero_grad()
        local loss = 0
        for _, p in ipairs(list) do loss = loss + p:sum() end
        scaler:scale(loss):backward()
        if before then before(scaler) end
      end)
    end
    local function unscale(scaler) scaler:unscale_(opt) end
    local x, y = gb.randn(elements), gb.randn(elements)
    report(case[1] .. ": copy", function() y:copy_(x) end)
    passes("unscale_", unscale)
    passes("clip, measured apart", function() clip(all, 1) end, unscale)
    passes("clip", function() clip(list, 1) end, unscale)
    passes("step", function(scaler) scaler:step(opt) end, unscale)
    passes("unscale_, clip, step, measured apart",
      function(scaler) scaler:unscale_(opt) clip(all, 1) scaler:step(opt) end)
    passes("unscale_, clip, step", function(scaler) scaler:unscale_(opt) clip(list, 1) scaler:step(opt) end)
    passes("step { clip = 1 }", function(scaler) scaler:step(opt, { clip = 1 }) end)
  end
end

-- Forward and backward of recurrent layers, 512 wide, over 64 steps of a batch of 32, and the products that they are
-- made of: of each layer three for all steps of the input, one for all of the state, and two for each step.
function groups.recurrent()
  local time, batch, width, layers = 64, 32, 512, 2
  local precision, dtype = measure.precision, measure.dtype
  for _, name in ipairs { "LSTM", "GRU" } do
    local gates = name == "LSTM" and 4 or 3
    local net, x = nn[name](width, width, { num_layers = layers }), gb.randn(time, batch, width):requires_grad_()
    local up = gb.randn(time, batch, width)
    report(name .. " " .. spelled, function()
      net:zero_grad()
      x.grad = nil
      amp.autocast(precision, function() return (net(x)) end):backward(up:to(dtype))
    end)
    local weight = gb.randn(gates * width, width):to(dtype)
    local all, sums = gb.randn(time * batch, width):to(dtype), gb.randn(time * batch, gates * width):to(dtype)
    local state, slopes = gb.randn(batch, width):to(dtype), gb.randn(batch, gates * width):to(dtype)
    local turned, columns = weight:t(), sums:t()
    local function product(a, b) local _ <close> = a:matmul(b) end
    report(name .. " products " .. spelled, function()
      for _ = 1, layers do
        product(all, turned) product(sums, weight) product(columns, all) product(columns, all)
        for _ = 1, time do product(state, turned) product(slopes, weight) end
      end
    end)
  end
end

-- What a call costs when there is nothing to compute.
function groups.small()
  local x, y = gb.randn(1):requires_grad_(true), gb.randn(1)
  report("x + y", function() for _ = 1, 1000 do local _ = x + y end end, 1000)
  local precision, nothing = amp.precision("bf16-mixed"), function() end
  report("autocast scope", function() for _ = 1, 1000 do amp.autocast(precision, nothing) end end, 1000)
  local net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
  local opt, input, target = optim.SGD(net:parameters(), { lr = 0.01 }), gb.randn(8, 8), gb.randn(8, 8)
  report("step of an MLP of width 8", function()
    for _ = 1, 100 do
      opt:zero_grad()
      F.mse_loss(net(input), target):backward()
      opt:step()
    end
  end, 100)
end

groups[measure.group]()
