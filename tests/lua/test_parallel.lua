-- test_parallel.lua - gb.nn.parallel.DataParallel on one process: what it computes beside the plain model, and what it
-- turns down. tests/dist compares the bits of many processes.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local nn, F, amp = gb.nn, gb.nn.functional, gb.amp

local function net() return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3)) end

-- Gradients of the mean loss over the batch, by one backward of the whole.
local function plain(model, x, y)
  for _, p in ipairs(model:parameters()) do p.grad = nil end
  local loss = F.cross_entropy(model(x), y)
  loss:backward()
  local grads = {}
  for i, p in ipairs(model:parameters()) do grads[i] = p.grad:clone() end
  model:zero_grad()
  return grads, loss:item()
end

local function run(ddp, x, y, scaler)
  for xs, ys in ddp:shards(x, y) do
    local loss = F.cross_entropy(ddp(xs), ys)
    ddp:record(loss);
    (scaler and scaler:scale(loss) or loss):backward()
  end
end

describe("DataParallel", function()
  it("gives the gradient of the mean over the batch, for any number of samples", function()
    for _, n in ipairs { 1, 5, 16, 19, 33 } do
      local model = net()
      local ddp = nn.parallel.DataParallel(model)
      local x, y = gb.randn(n, 6), gb.randint(0, 3, { n })
      local grads, loss = plain(model, x, y)
      run(ddp, x, y)
      for i, p in ipairs(model:parameters()) do expect(p.grad):to_be_close(grads[i], 1e-5) end
      expect(ddp:loss()):to_be_near(loss, 1e-5)
    end
  end)

  it("adds to what was there, before and after an optimizer adopts", function()
    for _, adopted in ipairs { false, true } do
      local model = net()
      local opt = adopted and gb.optim.SGD(model:parameters(), { lr = 0.1 })
      local ddp = nn.parallel.DataParallel(model, { shards = 4 })
      local x, y = gb.randn(12, 6), gb.randint(0, 3, { 12 })
      run(ddp, x, y)
      local once = model:parameters()[1].grad:clone()
      run(ddp, x, y)
      expect(model:parameters()[1].grad):to_be_close(once * 2, 1e-6)
      if opt then opt:step() end
    end
  end)

  it("accumulates inside a shard too, with one exchange", function()
    local model = net()
    local ddp = nn.parallel.DataParallel(model, { shards = 2 })
    local x, y = gb.randn(16, 6), gb.randint(0, 3, { 16 })
    local grads = plain(model, x, y)
    for xs, ys in ddp:shards(x, y) do
      for i = 1, 8, 4 do (F.cross_entropy(ddp(xs:narrow(1, i, 4)), ys:narrow(1, i, 4)) / 2):backward() end
    end
    for i, p in ipairs(model:parameters()) do expect(p.grad):to_be_close(grads[i], 1e-5) end
  end)

  it("keeps gradients and statistics of shards under no_sync, and exchanges once", function()
    for _, adopted in ipairs { false, true } do
      local model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 3))
      local opt = adopted and gb.optim.SGD(model:parameters(), { lr = 0.1 })
      local ddp = nn.parallel.DataParallel(model, { shards = 4 })
      local x, y = gb.randn(48, 6), gb.randint(0, 3, { 48 })
      local twin = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 3))
      twin:load_state_dict(model:state_dict())
      local other = nn.parallel.DataParallel(twin, { shards = 4 })
      model[1].bias.grad = gb.ones(16)
      twin[1].bias.grad = gb.ones(16)
      local losses = 0
      local result = ddp:no_sync(function(word)
        for i = 1, 17, 16 do
          run(ddp, x:narrow(1, i, 16), y:narrow(1, i, 16))
          losses = losses + ddp:loss()
          expect(model[1].weight.grad == nil):to_be(true)
          expect(model[1].bias.grad):to_equal_bits(gb.ones(16))
          expect(model[2].num_batches_tracked:item()):to_be(0)
        end
        return word
      end, "word")
      expect(result):to_be("word")
      run(ddp, x:narrow(1, 33, 16), y:narrow(1, 33, 16))
      losses = losses + ddp:loss()
      for i = 1, 33, 16 do
        run(other, x:narrow(1, i, 16), y:narrow(1, i, 16))
        losses = losses - other:loss()
      end
      expect(losses):to_be_near(0, 1e-5)
      for i, p in ipairs(model:parameters()) do expect(p.grad):to_be_close(twin:parameters()[i].grad, 1e-5) end
      for _, name in ipairs { "running_mean", "running_var" } do
        expect(model[2][name]):to_be_close(twin[2][name], 1e-5)
      end
      expect(model[2].num_batches_tracked:item()):to_be(3)
      for _, p in ipairs(model:parameters()) do p.grad = nil end
      run(ddp, x, y) -- nothing is kept any more
      local grads = {}
      for i, p in ipairs(model:parameters()) do grads[i], p.grad = p.grad:clone(), nil end
      run(ddp, x, y)
      for i, p in ipairs(model:parameters()) do expect(p.grad):to_be_close(grads[i], 1e-6) end
      if opt then opt:step() end
    end
  end)

  it("forgets what no_sync kept where a loop is left early", function()
    local model = net()
    local ddp = nn.parallel.DataParallel(model, { shards = 4 })
    local x, y = gb.randn(16, 6), gb.randint(0, 3, { 16 })
    local grads = plain(model, x, y)
    for _, p in ipairs(model:parameters()) do p.grad = nil end
    ddp:no_sync(run, ddp, x, y)
    pcall(function() for _ in ddp:shards(x, y) do error("left") end end)
    run(ddp, x, y)
    for i, p in ipairs(model:parameters()) do expect(p.grad):to_be_close(grads[i], 1e-5) end
  end)

  it("keeps the scale of gradients, and the scaler skips where one shard overflows", function()
    local model, scaler = net(), amp.GradScaler { init_scale = 1024 }
    local opt = gb.optim.AdamW(model:parameters(), { lr = 0.1 })
    local ddp = nn.parallel.DataParallel(model)
    local x, y = gb.randn(16, 6), gb.randint(0, 3, { 16 })
    local grads = plain(model, x, y)
    run(ddp, x, y, scaler)
    scaler:unscale_(opt)
    for i, p in ipairs(model:parameters()) do expect(p.grad):to_be_close(grads[i], 1e-5) end
    scaler:step(opt)
    scaler:update()
    opt:zero_grad()
    local before, first = model[1].weight:detach():clone(), true
    for xs, ys in ddp:shards(x, y) do
      local loss = F.cross_entropy(ddp(xs), ys)
      if first then loss = loss * 1e38 * 1e3 end
      first = false
      scaler:scale(loss):backward()
    end
    scaler:step(opt)
    scaler:update()
    expect(scaler:stats().skipped):to_be(1)
    expect(model[1].weight:detach()):to_equal_bits(before)
  end)

  it("leaves parameters that no shard used without a gradient, and counts what one used", function()
    local a, b, c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
    local Three = nn.Module:extend("Three")
    function Three:init() self.a, self.b, self.c = a, b, c end
    local uses = 0
    function Three:forward(x)
      uses = uses + 1
      return uses == 3 and b(a(x)) or a(x)
    end
    local ddp = nn.parallel.DataParallel(Three(), { shards = 4 })
    for xs in ddp:shards(gb.randn(8, 4)) do ddp(xs):sum():backward() end
    expect(a.weight.grad ~= nil and b.weight.grad ~= nil and c.weight.grad == nil):to_be(true)
  end)

  it("takes batches of tables, float64 and 16-bit parameters, and what is frozen", function()
    for _, dtype in ipairs { "float64", "bfloat16" } do
      local model = nn.Linear(4, 2):to(dtype)
      model.bias:requires_grad_(false)
      local ddp = nn.parallel.DataParallel(model, { shards = 2 })
      for batch, word in ddp:shards({ x = gb.randn(6, 4):to(dtype), scale = 2 }, "word") do
        expect(batch.x):to_have_shape(3, 4)
        expect(word == "word" and batch.scale == 2):to_be(true)
        ddp(batch.x):sum():backward()
      end
      expect(model.weight.grad.dtype):to_be(dtype)
      expect(model.bias.grad == nil):to_be(true)
    end
  end)

  it("means the statistics of batch norm over shards, and lets constants be", function()
    local Net = nn.Module:extend("Net")
    function Net:init()
      self.norm = nn.BatchNorm1d(3)
      self:register_buffer("mask", gb.tensor { -math.huge, 0.1, 1e30 })
    end
    function Net:forward(x) return self.norm(x) end
    local model = Net()
    local ddp, x = nn.parallel.DataParallel(model, { shards = 4 }), gb.randn(16, 3) + 2
    for xs in ddp:shards(x) do ddp(xs):sum():backward() end
    expect(model.norm.running_mean):to_be_close(x:mean(1) * 0.1, 1e-5)
    expect(model.norm.num_batches_tracked:item()):to_be(1)
    expect(model.mask):to_equal_bits(gb.tensor { -math.huge, 0.1, 1e30 })
  end)

  it("draws other random numbers in each shard, the same ones the next time", function()
    local function draws()
      gb.manual_seed(5)
      local ddp, list = nn.parallel.DataParallel(nn.Linear(1, 1), { shards = 4 }), {}
      for xs in ddp:shards(gb.ones(4, 1)) do
        list[#list + 1] = gb.rand(1):item()
        ddp(xs):sum():backward()
      end
      list[#list + 1] = gb.rand(1):item()
      return list
    end
    local a, b = draws(), draws()
    for i = 1, 5 do
      expect(a[i]):to_be(b[i])
      for k = 1, i - 1 do expect(a[i] ~= a[k]):to_be(true) end
    end
  end)

  it("is as if it had not begun where a loop is left early", function()
    local model = nn.BatchNorm1d(3)
    local ddp, x = nn.parallel.DataParallel(model), gb.randn(32, 3)
    model.weight.grad = gb.ones(3)
    gb.manual_seed(1)
    local mean = model.running_mean:clone()
    pcall(function()
      for xs in ddp:shards(x) do
        ddp(xs):sum():backward()
        gb.rand(2)
        error("left")
      end
    end)
    local next_draw = gb.rand(1)
    gb.manual_seed(1)
    expect(next_draw):to_equal_bits(gb.rand(1))
    expect(model.running_mean):to_equal_bits(mean)
    expect(model.weight.grad):to_equal_bits(gb.ones(3))
    for xs in ddp:shards(x) do ddp(xs):sum():backward() end
  end)

  it("saves as the model that it holds", function()
    local model = nn.Linear(2, 2)
    local ddp = nn.parallel.DataParallel(model)
    expect(ddp.module == model):to_be(true)
    expect(ddp:state_dict()["module.weight"]):to_equal_bits(model.weight:detach())
  end)

  it("refuses what it cannot do", function()
    local ddp = nn.parallel.DataParallel(nn.Linear(2, 2))
    expect(function() nn.parallel.DataParallel(nn.Linear(2, 2), { shards = 6 }) end):to_fail("power of two")
    expect(function() nn.parallel.DataParallel(nn.Linear(2, 2), { shards = 1 << 40 }) end):to_fail("power of two")
    expect(function() ddp:shards(gb.ones(4, 2), gb.ones(5)) end):to_fail("4 and 5")
    expect(function() ddp:shards(3) end):to_fail("no tensor")
    expect(function() ddp:shards(gb.ones(0, 2)) end):to_fail("no samples")
    expect(function() ddp:record(1) end):to_fail("loop over shards")
    expect(function() ddp:no_sync(function() ddp:no_sync(print) end) end):to_fail("runs already")
    expect(function() for _ in ddp:shards(gb.ones(8, 2)) do ddp:no_sync(print) end end):to_fail("around the loop")
    expect(function()
      ddp:no_sync(function() run(ddp, gb.ones(8, 2), gb.zeros(8, { dtype = "int64" })) end)
      ddp.module.bias:requires_grad_(false)
      run(ddp, gb.ones(8, 2), gb.zeros(8, { dtype = "int64" }))
    end):to_fail("no_sync has held")
    ddp = nn.parallel.DataParallel(nn.Linear(2, 2))
    expect(function() ddp.shards(nn.Linear(2, 2), gb.ones(1)) end):to_fail("DataParallel(model)")
    expect(function()
      for _ in ddp:shards(gb.ones(8, 2)) do ddp:shards(gb.ones(8, 2)) end
    end):to_fail("end that loop first")
    expect(function()
      local other, first = amp.GradScaler(), true
      for xs in ddp:shards(gb.ones(8, 2)) do
        local loss = ddp(xs):sum()
        if not first then loss = other:scale(loss) end
        first = false
        loss:backward()
      end
    end):to_fail("scale")
    expect(ddp:loss() ~= ddp:loss()):to_be(true)
  end)
end)

gb.test.finish()
