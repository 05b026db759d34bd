-- loader.lua - a DataLoader with parts gives each rank its part of every batch: together they are the batch, whatever
-- the loader is made of; and a loop of one call over them leaves the same bits for every number of processes.

local gb = require "gibbous"
local nn, F, data, dist = gb.nn, gb.nn.functional, gb.data, gb.dist
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
if not dist.is_initialized() then dist.init { timeout = 60 } end

gb.manual_seed(5)
local x, y = gb.arange(45):float():reshape(45, 1), gb.arange(45)
local native_set = data.TensorDataset(x, y)
local table_set = setmetatable({ get = function(_, i) return x[i], y[i] end }, { __len = function() return 45 end })
local function scaled(samples)
  local sum = 0
  for _, sample in ipairs(samples) do sum = sum + sample[2]:item() end -- hangs on the whole batch
  local rows, labels = {}, {}
  for i, sample in ipairs(samples) do rows[i], labels[i] = sample[1] * sum, sample[2] end
  return gb.stack(rows), gb.stack(labels)
end
local lists = {}
for i = 1, 9 do lists[i] = { i, 2 * i, 3 * i, 4 * i, 5 * i } end

local kinds = {
  { "a native dataset", native_set, { batch_size = 12 } },
  { "shuffled", native_set, { batch_size = 11, shuffle = true } },
  { "small batches", native_set, { batch_size = 3, shuffle = true } },
  { "without the last", native_set, { batch_size = 10, drop_last = true, shuffle = true } },
  { "a sampler", native_set, { batch_size = 8, sampler = { 5, 4, 3, 45, 1, 9, 9, 2, 7, 30, 31 } } },
  { "random batches", native_set, { batch_size = 9, batches = 3 } },
  { "a batch sampler", native_set, { batch_sampler = lists } },
  { "a table", table_set, { batch_size = 7, shuffle = true } },
  { "a collate function", table_set, { batch_size = 10, collate = scaled } },
  { "one that collates a native dataset", native_set, { batch_size = 10, collate = scaled } },
}

describe("a loader with parts", function()
  local model = nn.parallel.DataParallel(nn.Linear(1, 1))
  for _, kind in ipairs(kinds) do
    it("of " .. kind[1] .. " reads batches that are whole together", function()
      local options = { parts = model, seed = 3 }
      for key, value in pairs(kind[3]) do options[key] = value end
      local parts = data.DataLoader(kind[2], options)
      options.parts = nil
      local whole = data.DataLoader(kind[2], options)
      expect(#parts):to_be(#whole)
      for epoch = 1, 3 do
        local source, batches = parts:iter(), 0
        for a, b in whole:iter() do
          batches = batches + 1
          local xs, ys = {}, {}
          for r, part in ipairs(dist.all_gather_object({ source() })) do xs[r], ys[r] = part[1], part[2] end
          expect(gb.cat(xs)):to_equal_bits(a)
          expect(gb.cat(ys)):to_equal_bits(b)
          if epoch == 2 and batches == 2 then parts:load_state_dict(parts:state_dict()) source = parts:iter() end
        end
        expect(batches):to_be(#whole)
        expect(source()):to_be(nil)
      end
    end)
  end
  it("takes a wrapped model alone", function()
    expect(function() data.DataLoader(native_set, { parts = nn.Linear(1, 1) }) end):to_fail("'parts' is a model that")
  end)
  it("is told where a batch is no part of its own", function()
    if dist.world_size() == 1 then return end
    local other = nn.parallel.DataParallel(nn.Linear(1, 1))
    data.DataLoader(native_set, { parts = other })
    expect(function() other:shards(gb.ones(16 + dist.rank() * 8, 1)) end):to_fail("and its part is")
    dist.barrier()
    for _, case in ipairs { { "seed of the DataLoader", native_set, { seed = dist.rank() } },
      { "number of samples of the DataLoader's dataset", data.TensorDataset(gb.ones(16 + dist.rank(), 1)),
        { seed = 1 } },
      { "place of the DataLoader", native_set, { seed = 1, skip = dist.rank() % 2 } },
      { "order of the DataLoader's samples", native_set,
        { sampler = { 1, 2, 3, 4, 5, 6, 7, 8, 9 + dist.rank() } } } } do
      local wrapped = nn.parallel.DataParallel(nn.Linear(1, 1))
      local skip = case[3].skip
      case[3].skip, case[3].parts, case[3].batch_size = nil, wrapped, 8
      local batches = data.DataLoader(case[2], case[3]):iter()
      for _ = 1, skip or 0 do batches() end
      local rows = batches()
      expect(function() for xs in wrapped:shards(rows) do wrapped(xs):sum():backward() end end)
        :to_fail("the " .. case[1])
    end
    if dist.world_size() ~= 3 then return end
    -- Three ranks have 2, 3 and 3 of eight shards, and 1, 1 and 2 of four: the batch is right for rank 0 alone.
    local source = data.DataLoader(native_set, { batch_size = 8, parts = nn.parallel.DataParallel(nn.Linear(1, 1)) })
    local coarse = nn.parallel.DataParallel(nn.Linear(1, 1), { shards = 4 })
    data.DataLoader(native_set, { parts = coarse })
    for rows in source:iter() do
      expect(function() for xs in coarse:shards(rows) do coarse(xs):sum():backward() end end)
        :to_fail("do not agree on the batch")
    end
    dist.barrier()
  end)
end)

-- What a loop of few lines leaves.
local function train()
  gb.manual_seed(2)
  local model = nn.parallel.DataParallel(nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.2), nn.Linear(8, 3)))
  local opt, scaler = gb.optim.AdamW(model.module:parameters(), { lr = 0.01 }), gb.amp.GradScaler { init_scale = 64 }
  local labels = data.TensorDataset(x / 45, y % 3)
  local loader = data.DataLoader(labels, { batch_size = 10, shuffle = true, seed = 1, parts = model })
  local text = {}
  for _ = 1, 3 do
    for a, b in loader:iter() do
      opt:zero_grad()
      local loss = model:backward(function(xs, ys)
        local mean = F.cross_entropy(model(xs), ys)
        return scaler:scale(mean), mean
      end, a, b)
      scaler:step(opt)
      scaler:update()
      text[#text + 1] = ("%a"):format(loss)
    end
  end
  -- A model that draws in evaluation draws by the batch, and leaves the random stream alone.
  local where = gb.get_rng_state()
  local function noisy(net, a, b) return F.cross_entropy(F.dropout(net(a), 0.5, true), b) end
  text[#text + 1] = ("%a"):format(gb.evaluate(model.module, data.DataLoader(labels, { batch_size = 7 }),
    { compute = noisy }).val_loss)
  for key, value in pairs(gb.get_rng_state()) do expect(value):to_be(where[key]) end
  for _, p in ipairs(model.module:parameters()) do text[#text + 1] = gb.to_bytes(p:detach()):gsub(".", function(c)
    return ("%02x"):format(c:byte()) end) end
  return table.concat(text, " ")
end

local text = train()
expect(dist.broadcast_object(text)):to_be(text)
if dist.rank() == 0 and arg then print(text) end
gb.test.finish()
return text
