-- trainer.lua - a Trainer in a job: what it leaves is one text for every number of processes, one included: weights,
-- the optimizer, measures of training and validation, the best checkpoint, the early stop; and ranks that want
-- different things do the same.

local gb = require "gibbous"
local nn, F, data, dist = gb.nn, gb.nn.functional, gb.data, gb.dist
if not dist.is_initialized() then dist.init { timeout = 20 } end
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local rank, size = dist.rank(), dist.world_size()
local folder = dist.once(function()
  local name = os.tmpname()
  os.remove(name)
  return name
end)

local Net = nn.Module:extend("Net")
function Net:init()
  self.first, self.norm, self.last = nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Linear(12, 4)
end
function Net:forward(x) return self.last(F.dropout(F.relu(self.norm(self.first(x))), 0.2, self.training)) end

-- A Trainer and its loaders: batches of 24, and a last one of 21.
local function make(options)
  gb.manual_seed(options.from or 4)
  local x, y = gb.randn(93, 6), gb.randint(0, 4, { 93 })
  for i = 1, 93, 3 do y[i] = -100 end -- labels that do not count
  local train = data.DataLoader(data.TensorDataset(x, y), { batch_size = 24, shuffle = true })
  local valid = data.DataLoader(data.TensorDataset(x, y), { batch_size = 9 })
  local made = { model = Net(), optimizer = { "AdamW", lr = 0.02 }, loss = F.cross_entropy, device = "cpu", epochs = 3,
    progress = false, shards = 8 }
  for key, value in pairs(options) do made[key] = value end
  made.from = nil
  if made.shards == "none" then made.shards = nil end
  return gb.Trainer(made), train, valid
end

local hash
local function add(value)
  if gb.is_tensor(value) then value = gb.to_bytes(value:detach():contiguous()) end
  if type(value) == "number" then value = ("%a"):format(value) end
  for i = 1, #value do hash = (hash ~ value:byte(i)) * 0x100000001B3 end
end

-- A digest of all that a run has come to.
local function digest(trainer, values)
  hash = 0xCBF29CE484222325
  for _, p in ipairs(trainer.model:parameters()) do add(p) end
  for _, b in trainer.model:named_buffers() do add(b) end
  for _, state in ipairs(trainer.optimizer:state_dict().state) do
    add(state.exp_avg)
    add(state.exp_avg_sq)
  end
  local names = {}
  for name, value in pairs(values) do
    local is_timed = name == "samples_per_second" or name == "data_wait"
    if type(value) == "number" and not is_timed then names[#names + 1] = name end
  end
  table.sort(names)
  for _, name in ipairs(names) do
    add(name)
    add(values[name])
  end
  return ("%016x step %d skipped %d %s"):format(hash, trainer.step, trainer.skipped, values.reason)
end

local lines = {}
local function same(name, text)
  expect(dist.broadcast_object(text)):to_be(text)
  lines[#lines + 1] = name .. ": " .. text
end

local function shared(optimizer) return gb.optim.Sharded(optimizer, { weights = "needed" }) end

describe("a Trainer in a job", function()
  for _, precision in ipairs { "32-true", "16-mixed", "bf16-mixed" } do
    it("leaves the same bits for any number of processes, in " .. precision, function()
      local trainer, train, valid = make { precision = precision, accumulate = 2, clip = 0.5, average = "ema",
        schedule = { "Cosine", warmup = 0.1 }, metrics = { "accuracy", "perplexity", own = function(o, y)
          return o:mean() + y:float():mean(), 2 end }, train_metrics = true,
        scaler = precision == "16-mixed" and gb.amp.GradScaler({ init_scale = 2.0 ^ 19 }) or nil }
      same(precision, digest(trainer, trainer:fit(train, valid)))
      expect(trainer.shards):to_be(8)
    end)
  end

  it("has 8 shards where nothing is said, if it is not alone", function()
    local trainer, train = make { epochs = 1, shards = "none" }
    trainer:fit(train)
    expect(trainer.shards):to_be(size > 1 and 8 or nil)
    expect(function() make { shards = 3 } end):to_fail("power of two")
  end)

  it("stops early, keeps the best file, and predicts alike", function()
    local trainer, train, valid = make { epochs = 9, stop = { monitor = "val_loss", patience = 2, min_delta = 0.5 },
      checkpoint = { folder .. "/best", monitor = "val_loss", name = "{step}" } }
    local values = trainer:fit(train, valid)
    same("stopped", digest(trainer, values) .. " best " .. trainer.checkpoint.best:match("[^/]*$"))
    local all = trainer:predict(valid)
    expect(all:size(1)):to_be(93)
    add(all)
    same("predicted", ("%016x"):format(hash))
    local by_hand = gb.evaluate(trainer.model, valid, { loss = F.cross_entropy })
    expect(by_hand.val_loss):to_be(trainer:validate(valid).val_loss)
  end)

  it("tells all ranks where some of them have other metrics", function()
    if size == 1 then return end
    local trainer, _, valid = make { epochs = 1 }
    local metrics = rank == 0 and gb.Metrics { "accuracy" } or nil
    expect(function() gb.evaluate(trainer.model, valid, { loss = F.cross_entropy, metrics = metrics }) end)
      :to_fail("every process has the same metrics")
    dist.barrier()
  end)

  it("measures where only some batches have an output", function()
    local _, _, valid = make {}
    gb.manual_seed(4)
    local model = Net()
    local seen = 0
    local values = gb.evaluate(model, valid, { metrics = { "accuracy" }, compute = function(net, x, y)
      local out = net(x)
      seen = seen + 1
      if y:flatten()[1]:item() % 2 == 0 then return F.cross_entropy(out, y), out, y end
      return out:sum() * 0
    end })
    expect(seen > 0):to_be(true)
    same("some", ("%a"):format(values.val_accuracy))
  end)

  it("does on all ranks what one of them wants", function()
    local saved = 0
    local trainer, train = make { epochs = 9, checkpoint = { folder .. "/wish", every_seconds = 1e6 },
      on = { step = function(t)
        if rank == size - 1 and t.step == 3 then t:stop("enough on the last rank") end
      end, save = function() saved = saved + 1 end } }
    expect(trainer:fit(train).reason):to_be("enough on the last rank")
    expect(trainer.step):to_be(3)
    expect(saved):to_be(1)
    local timed, list = make { time = 1e-9, epochs = 5 }
    timed:fit(list)
    expect(timed.step):to_be(1)
  end)

  it("stops on all ranks after the step in which one wants it, or the next", function()
    local trainer, train
    local function loss(output, target)
      if rank == size - 1 and trainer.step == 2 then trainer:stop("the loss said so") end -- within step 3
      return F.cross_entropy(output, target)
    end
    trainer, train = make { epochs = 9, loss = loss }
    expect(trainer:fit(train).reason):to_be("the loss said so")
    expect(trainer.step):to_be(3)
    trainer, train = make { epochs = 9, schedule = { "Lambda", fn = function(t) -- after the message of a step, on all
      if t == 2 and trainer then trainer:stop("the schedule said so") end
      return 1
    end } }
    expect(trainer:fit(train).reason):to_be("the schedule said so")
    expect(trainer.step):to_be(2)
    local logger = { log = function() -- after the message of a step, on rank 0 alone
      if trainer.step == 3 then trainer:stop("the logger said so") end
    end, close = function() end }
    trainer, train = make { epochs = 9, log = logger, log_every = 1 }
    expect(trainer:fit(train).reason):to_be("the logger said so")
    expect(trainer.step):to_be(size > 1 and 4 or 3)
  end)

  -- How many messages this rank sends in a step, from one forward pass to the next, in the middle of an epoch.
  local function messages_of_step(precision, share, metrics)
    gb.manual_seed(4)
    local trainer, model, seen, sent = nil, Net(), nil, {}
    local function loss(output, target)
      if trainer.step ~= seen then seen, sent[#sent + 1] = trainer.step, dist.stats().messages_sent end
      return F.cross_entropy(output, target)
    end
    local adam = gb.optim.AdamW(model:parameters(), { lr = 0.02 })
    local set = data.TensorDataset(gb.randn(120, 6), gb.randint(0, 4, { 120 }))
    trainer = gb.Trainer { model = model, optimizer = share and gb.optim.Sharded(adam) or adam, loss = loss,
      device = "cpu", epochs = 1, progress = false, shards = 8, clip = 0.5, precision = precision,
      checkpoint = { folder .. "/counted", every_steps = 1000 }, metrics = metrics, train_metrics = metrics ~= nil,
      scaler = precision == "16-mixed" and gb.amp.GradScaler { init_scale = 1024.0 } or nil }
    trainer:fit(data.DataLoader(set, { batch_size = 24 }))
    expect(trainer.step):to_be(5)
    expect(sent[4] - sent[3]):to_be(sent[5] - sent[4])
    return sent[5] - sent[4]
  end

  -- The same of gradients and weights alone.
  local function messages_by_hand(share)
    local model = nn.parallel.DataParallel(Net(), { shards = 8 })
    local opt = gb.optim.AdamW(model:parameters(), { lr = 0.02 })
    if share then gb.optim.Sharded(opt) end
    local before
    for _ = 1, 3 do
      before = dist.stats().messages_sent
      opt:zero_grad()
      model:backward(function(x, y) return F.cross_entropy(model(x), y) end, gb.randn(24, 6), gb.randint(0, 4, { 24 }))
      opt:step()
    end
    return dist.stats().messages_sent - before
  end

  for _, precision in ipairs { "32-true", "16-mixed" } do
    it("sends one message a step beside gradients and weights, in " .. precision, function()
      expect(messages_of_step(precision, false)):to_be(messages_by_hand(false))
      expect(messages_of_step(precision, true)):to_be(messages_by_hand(true))
      expect(messages_of_step(precision, false, { a = "accuracy" })):to_be(messages_by_hand(false))
      local rounds = ({ [1] = 0, [2] = 1, [4] = 2, [8] = 3 })[size]
      if rounds then expect(messages_by_hand(false)):to_be(2 * rounds) end -- small gradients, and the message
    end)
  end

  it("says on every rank that they count labels otherwise", function()
    if size == 1 then return end
    gb.manual_seed(4)
    local x, y = gb.randn(96, 6), gb.randint(0, 4, { 96, 1 })
    if rank == 1 then y = gb.cat({ y, y }, 2) end
    local trainer = gb.Trainer { model = Net(), optimizer = { "SGD", lr = 0.02 }, device = "cpu", epochs = 1,
      progress = false, shards = 8,
      loss = function(output, target) return F.cross_entropy(output, target[{ {}, 1 }]) end }
    expect(function() trainer:fit(data.DataLoader(data.TensorDataset(x, y), { batch_size = 24 })) end)
      :to_fail("do not agree on the number of elements that the loss is the mean of")
    dist.barrier() -- all know it, so the job goes on
  end)

  it("begins and draws as rank 0 does, whatever the seeds", function()
    local trainer, train = make { from = rank + 1, epochs = 1 }
    trainer:fit(data.DataLoader(train.dataset, { batch_size = 24, shuffle = true }))
    local weight = trainer.model.first.weight:detach()
    if trainer.values.loss == trainer.values.loss then
      for _, other in ipairs(dist.all_gather(weight)) do expect(other):to_equal_bits(weight) end
    end
  end)

  it("goes on from a checkpoint with the same bits, and in its shards", function()
    local function run(name, options)
      options.precision, options.checkpoint = "16-mixed", { folder .. "/" .. name, every_steps = 1000 }
      options.resume = true
      local trainer, train, valid = make(options)
      return digest(trainer, trainer:fit(train, valid)), trainer
    end
    local whole = run("whole", {})
    run("half", { on = { step = function(t) return t.step ~= 7 end } })
    dist.barrier()
    expect((run("half", {}))):to_be(whole)
    same("resumed", whole)
    run("four", { shards = size <= 4 and 4 or 8, on = { step = function(t) return t.step ~= 2 end } })
    if size <= 4 then expect(function() run("four", { shards = 8 }) end):to_fail("a run in 4 virtual shards") end
    if size == 1 then
      run("alone", { on = { step = function(t) return t.step ~= 7 end } })
      local text = run("alone", { shards = "none" })
      expect(text):to_be(whole)
    end
  end)

  for _, precision in ipairs { "32-true", "bf16-mixed" } do
    it("saves an optimizer that is shared out as if it were whole, in " .. precision, function()
      local function run(name, share, steps)
        name = name .. precision
        gb.manual_seed(4)
        local model = Net()
        local adam = gb.optim.AdamW(model:parameters(), { lr = 0.02 })
        local trainer, train = make { model = model, optimizer = share and shared(adam) or adam, epochs = 2,
          precision = precision, average = { decay = 0.9, start = 4 }, resume = true,
          metrics = { a = "accuracy" }, train_metrics = true,
          checkpoint = { folder .. "/" .. name, every_steps = 3, name = "{step}" },
          on = { step = function(t) return t.step ~= steps end } }
        return digest(trainer, trainer:fit(train))
      end
      local whole = run("apart", false)
      run("shared", true, 6)
      dist.barrier()
      expect(run("shared", true)):to_be(whole)
    end)
  end

  it("names the largest gradient of all in a spike, also where gradients are shared out", function()
    local function run(share)
      gb.manual_seed(4)
      local model, texts = Net(), {}
      local adam = gb.optim.AdamW(model:parameters(), { lr = 0.5 })
      local trainer, train = make { model = model, optimizer = share and shared(adam) or adam, epochs = 2,
        spikes = { tolerance = 0.01 } }
      local say = print
      _G.print = function(text) texts[#texts + 1] = text end
      local ok, message = pcall(trainer.fit, trainer, train)
      _G.print = say
      if not ok then error(message) end
      expect(#trainer.spikes_found > 0):to_be(true)
      dist.barrier()
      return table.concat(texts, "\n")
    end
    local whole = run(false)
    expect(whole:find("largest gradient is that of", 1, true) ~= nil):to_be(rank == 0)
    expect(run(true)):to_be(whole)
  end)

  it("saves nothing after an error on one rank where the optimizer is shared out", function()
    local function run(share)
      gb.manual_seed(4)
      local model, texts = Net(), {}
      local adam = gb.optim.AdamW(model:parameters(), { lr = 0.02 })
      local trainer, train = make { model = model, optimizer = share and shared(adam) or adam, epochs = 2,
        save_on_error = true, checkpoint = { folder .. "/error", every_steps = 1000 },
        on = { finish = function() error("as planned", 0) end, start = function(t) t:stop() end } }
      local say = print
      _G.print = function(text) texts[#texts + 1] = text end
      local ok, message = pcall(trainer.fit, trainer, train)
      _G.print = say
      expect(ok):to_be(false)
      expect(message):to_be("as planned")
      dist.barrier() -- nobody waits for who does not save
      return table.concat(texts, "\n")
    end
    local whole, parts = run(false), run(true)
    expect(whole:find("holds all of it", 1, true) ~= nil):to_be(rank == 0)
    expect(parts:find("nothing was saved: the optimizer is shared out", 1, true) ~= nil):to_be(rank == 0 and size > 1)
  end)

  it("says where a run without shards goes on in shards", function()
    local function run(shards, steps, name)
      local trainer, train = make { shards = shards, epochs = 2, resume = true,
        checkpoint = { folder .. "/bare" .. (name or ""),
          every_steps = 1000 }, on = { step = function(t) return t.step ~= steps end } }
      local texts, say = {}, print
      _G.print = function(text) texts[#texts + 1] = text end
      local ok, message = pcall(trainer.fit, trainer, train)
      _G.print = say
      if not ok then error(message) end
      return table.concat(texts, "\n"), trainer
    end
    run(false, 3, rank > 0 and rank) -- each alone
    dist.barrier()
    local text, trainer = run(8, 5)
    expect(trainer.step):to_be(5)
    expect(text:find("without virtual shards, which goes on in 8", 1, true) ~= nil):to_be(rank == 0)
    expect((run(8)):find("without virtual shards", 1, true)):to_be(nil)
  end)

  it("fails on all ranks where one cannot save", function()
    local trainer, train = make { epochs = 1, checkpoint = { folder .. "/none" } }
    dist.once(function() os.execute("mkdir -p " .. folder .. "; touch " .. folder .. "/file") end)
    local bad = make { epochs = 1, checkpoint = { folder .. "/file/in" } }
    expect(function() bad:fit(train) end):to_fail("cannot make the folder")
    trainer:fit(train)
  end)

  it("trains alone where it is told to", function()
    local trainer, train = make { shards = false, epochs = 1 }
    if rank == 0 then trainer:fit(train) end
    dist.barrier()
  end)
end)

dist.once(function() os.execute("rm -rf " .. folder) end)
if rank == 0 and arg then print(table.concat(lines, "\n")) end
gb.test.finish()
return table.concat(lines, "\n")
