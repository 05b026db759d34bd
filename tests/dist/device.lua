-- device.lua - tensors and models on a GPU: sums by the same tree, over NCCL where they lie, else in the host's memory.
-- Run on the emulated device, on every rank of a job; the text is the same for every number of ranks.

local gb = require "gibbous"
local nn, F, dist = gb.nn, gb.nn.functional, gb.dist
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
if not dist.is_initialized() then dist.init { timeout = 120 } end
local rank, size = dist.rank(), dist.world_size()
local on_device = { device = "cuda" }

describe("dist on a GPU", function()
  it("exchanges tensors of every dtype, which stay there", function()
    for _, dtype in ipairs { "float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8" } do
      local function of(r) return ((gb.arange(6) + r) % 5):to(dtype) end
      local sum = of(0)
      for r = 1, size - 1 do sum = sum + of(r) end
      local mine = of(rank):to("cuda")
      expect(dist.all_reduce(mine:clone()):cpu()):to_equal_bits(sum)
      expect(dist.broadcast(mine:clone(), size - 1):cpu()):to_equal_bits(of(size - 1))
      local all = dist.all_gather(mine)
      for r = 1, size do
        expect(all[r].device):to_be(mine.device)
        expect(all[r]:cpu()):to_equal_bits(of(r - 1))
      end
      local part = dist.reduce_scatter(gb.ones(2 * size, on_device):to(dtype), "sum", { async = true }):wait()
      expect(part:cpu()):to_equal_bits((gb.ones(2) * size):to(dtype))
      if size > 1 and rank == 0 then dist.send(mine, 1) end
      if rank == 1 then
        local got = gb.zeros(6, on_device):to(dtype)
        expect(dist.recv(got, 0):cpu()):to_equal_bits(of(0))
      end
    end
  end)
end)

local function text_of(model)
  local text = {}
  for _, p in ipairs(model:parameters()) do
    text[#text + 1] = gb.to_bytes(p:detach():cpu()):gsub(".", function(c) return ("%02x"):format(c:byte()) end)
  end
  for _, b in model:named_buffers() do text[#text + 1] = table.concat(b:cpu():reshape(-1):tolist(), " ") end
  return table.concat(text, " ")
end

-- share: with the optimizer's states shared out, and saved and loaded between steps.
local function train(name, share)
  gb.manual_seed(3)
  local precision = gb.amp.precision(name)
  local model = nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Dropout(0.2), nn.Linear(10, 3))
  local ddp = nn.parallel.DataParallel(model:to("cuda"):to(precision), { shards = 8 })
  local opt, scaler = gb.optim.AdamW(model:parameters(), { lr = 0.02 }), gb.amp.GradScaler(precision)
  local text = {}
  if share then gb.optim.Sharded(opt, { weights = "needed" }) end
  for step = 1, 4 do
    if share and step == 4 then opt:load_state_dict(opt:state_dict()) end
    opt:zero_grad()
    local x, y = gb.randn(24, 6, on_device), gb.randint(0, 3, { 24 }):to("cuda")
    text[#text + 1] = ("%a"):format(ddp:backward(function(xs, ys)
      local loss = gb.amp.autocast(precision, function() return F.cross_entropy(ddp(xs):to("float32"), ys) end)
      if name == "16-mixed" and step == 2 then loss = loss * 1e38 * 1e3 end -- all skip it
      return scaler:scale(loss), loss
    end, x, y))
    scaler:step(opt, { clip = 0.5 })
    scaler:update()
  end
  if share then opt:gather() end
  return table.concat(text, " ") .. text_of(model)
end

describe("a sharded optimizer on a GPU", function()
  for _, name in ipairs { "32-true", "bf16-mixed", "16-mixed" } do
    it("has the bits of the whole one in " .. name, function() expect(train(name, true) == train(name)):to_be(true) end)
  end
  -- Four chunks, so that several ranks have some.
  local function wide(kind, options)
    gb.manual_seed(8)
    local first, last = nn.Linear(6, 6000):to("cuda"), nn.Linear(6000, 3):to("cuda")
    local ddp = nn.parallel.DataParallel(nn.ModuleList { first, last }, { shards = 8 })
    local opt, scaler = gb.optim[kind](ddp.module:parameters(), { lr = 0.01 }), gb.amp.GradScaler()
    if options then gb.optim.Sharded(opt, options) end
    local numbers = {}
    for step = 1, 5 do
      opt:zero_grad()
      ddp:backward(function(x)
        local loss = gb.amp.autocast("16-mixed", function() return last(gb.tanh(first(x))):float():square():mean() end)
        return scaler:scale(step == 3 and loss * 1e38 * 1e3 or loss)
      end, gb.randn(16, 6, on_device))
      if step == 5 then
        scaler:unscale_(opt)
        numbers[#numbers + 1] = nn.utils.clip_grad_norm_(ddp.module:parameters(), 0.1):cpu()
      end
      scaler:step(opt, step ~= 5 and { clip = 0.1 } or nil)
      scaler:update()
      numbers[#numbers + 1] = gb.tensor { scaler:get_scale(), #scaler:report() }
    end
    opt:gather()
    for _, p in ipairs(ddp.module:parameters()) do numbers[#numbers + 1] = p:detach():cpu() end
    return numbers
  end
  for _, case in ipairs { { "AdamW", {} }, { "LAMB", {} }, { "AdamW", { weights = "needed" } } } do
    it("has the bits of the whole one where ranks have parts of gradients, with " .. case[1], function()
      local whole, shared = wide(case[1]), wide(table.unpack(case))
      for i, number in ipairs(whole) do expect(shared[i]):to_equal_bits(number) end
    end)
  end
  it("measures anew what a graph has written", function()
    local function run(shares)
      gb.manual_seed(5)
      local ddp = nn.parallel.DataParallel(nn.Linear(300, 400):to("cuda"))
      local opt, norms, clip = gb.optim.SGD(ddp.module:parameters(), { lr = 0.1 }), {}, nil
      if shares then gb.optim.Sharded(opt) end
      for step = 1, 5 do
        opt:zero_grad()
        ddp:backward(function(x) return ddp(x):square():mean() end, gb.randn(16, 300, on_device))
        clip = clip or gb.cuda.graph(function(x)
          nn.utils.clip_grad_value_(ddp.module:parameters(), 1e-4)
          return x * 2
        end, { gb.ones(1, on_device) })
        clip(gb.ones(1, on_device))
        norms[step] = ("%a"):format(nn.utils.clip_grad_norm_(ddp.module:parameters(), 0.01):item())
        opt:step()
      end
      return table.concat(norms, " ")
    end
    expect(run(true)):to_be(run(false))
  end)
  it("measures together nothing that is captured", function()
    if size == 1 then return end
    local weight = gb.zeros(4, on_device):requires_grad_()
    local opt = gb.optim.Sharded(gb.optim.SGD({ weight }, { lr = 1 }))
    local clip = gb.cuda.graph(function(x)
      (weight * x):sum():backward()
      nn.utils.clip_grad_norm_({ weight }, 1)
    end, { gb.ones(4, on_device) })
    clip(gb.ones(4, on_device)) -- as it is
    expect(function() clip(gb.ones(4, on_device)) end):to_fail("clip and unscale outside of what is captured")
    dist.barrier()
    opt:close()
  end)
  it("is not captured", function()
    if size == 1 then return end
    local weight = gb.zeros(4, on_device):requires_grad_()
    local opt = gb.optim.Sharded(gb.optim.SGD({ weight }, { lr = 1 }))
    local step = gb.cuda.graph(function(x)
      (weight * x):sum():backward()
      opt:step()
    end, { gb.ones(4, on_device) })
    step(gb.ones(4, on_device)) -- as it is
    expect(function() step(gb.ones(4, on_device)) end):to_fail("which cannot be captured")
    dist.barrier()
  end)
end)

-- Shards of unequal size, a part that only some shards use, float64, gradients that are held and that were there
-- before, without an optimizer's slabs, and a round that is abandoned.
local function train_oddly()
  gb.manual_seed(4)
  local model = nn.ModuleDict { first = nn.Linear(5, 300), second = nn.Linear(300, 3), seldom = nn.Linear(300, 3),
                                wide = nn.Linear(3, 3):to("float64") }
  model:to("cuda")
  local ddp = nn.parallel.DataParallel(model, { shards = 8 })
  local function loss_of(xs, ys)
    local x = F.relu(model.first(xs))
    local out = ys.shape[1] > 2 and model.second(x) + model.seldom(x) or model.second(x)
    return F.cross_entropy(model.wide(out:to("float64")), ys)
  end
  local function backward(n)
    local x, y = gb.randn(n, 5, on_device), gb.randint(0, 3, { n }):to("cuda")
    return ddp:backward(loss_of, x, y)
  end
  local losses = {}
  for step = 1, 3 do
    ddp:no_sync(function() losses[#losses + 1] = backward(21) end)
    losses[#losses + 1] = backward(19)
    if step == 2 then losses[#losses + 1] = backward(6) end -- beside the gradients that are there
    expect(pcall(function()
      for _ in ddp:shards(gb.ones(8, 5, on_device)) do error("left") end
    end)):to_be(false)
    gb.no_grad(function()
      for _, p in ipairs(model:parameters()) do
        p:sub_(p.grad, { alpha = 0.1 })
        p.grad = nil
      end
    end)
  end
  for i, loss in ipairs(losses) do losses[i] = ("%a"):format(loss) end
  return table.concat(losses, " ") .. text_of(model)
end

local text = train "32-true" .. train "16-mixed" .. train_oddly()
if arg and arg[1] == "text" then print("digest " .. text) end
gb.test.finish()
return text
