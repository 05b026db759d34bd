-- digests.lua - training in virtual shards: what comes out, as a text that must be the same on every rank of every job.
--
-- A row for each precision, optimizer and way of accumulation: a digest of weights, statistics of batch norm, states of
-- the optimizer and of the scaler, and losses, after steps with dropout, clipping, batches of uneven size, a parameter
-- that few shards use, and, with a scaler, gradients of one shard that overflow.

local gb = require "gibbous"
local nn, F, dist = gb.nn, gb.nn.functional, gb.dist
if not dist.is_initialized() then dist.init { timeout = 120 } end
local STEPS = tonumber(arg and arg[1]) or 12

local Net = nn.Module:extend("Net")
function Net:init()
  self.first = nn.Linear(12, 24)
  self.norm = nn.BatchNorm1d(24)
  self.seldom = nn.Linear(24, 24)
  self.last = nn.Linear(24, 5)
end
function Net:forward(x)
  local h = F.dropout(F.relu(self.norm(self.first(x))), 0.25, self.training)
  if x[1][1]:item() > 1.2 then h = h + self.seldom(h) end -- hangs on the shard
  return self.last(h)
end

local hash = 0
local function add(text) for i = 1, #text do hash = (hash ~ text:byte(i)) * 0x100000001B3 end end
local function add_value(value)
  if gb.is_tensor(value) then add(gb.to_bytes(value:detach():contiguous()))
  elseif type(value) == "table" then
    local keys = {}
    for key in pairs(value) do keys[#keys + 1] = key end
    table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
    for _, key in ipairs(keys) do
      add(tostring(key))
      add_value(value[key])
    end
  else add(type(value) == "number" and ("%a"):format(value) or tostring(value)) end
end

local function train(name, optimizer, accumulate, holds)
  gb.manual_seed(11)
  local precision = gb.amp.precision(name)
  local ddp = nn.parallel.DataParallel(Net():to(precision), { shards = 8, overlap = true })
  local opt = gb.optim[optimizer](ddp.module:parameters(), { lr = 0.02 })
  local scaler = gb.amp.GradScaler(precision)
  local losses = {}
  for step = 1, STEPS do
    opt:zero_grad()
    local function batch()
      local n = step % 4 == 3 and 19 or step % 4 == 0 and 5 * 8 or 32
      if step == 6 then n = 5 end -- fewer samples than shards, of which a batch norm can measure none
      ddp.module.norm:train(n >= 16)
      local x, y = gb.randn(n, 12), gb.randint(0, 5, { n })
      for xs, ys in ddp:shards(x, y) do
        local loss = gb.amp.autocast(precision, function()
          return F.cross_entropy(ddp(xs):to("float32"), ys)
        end)
        ddp:record(loss)
        -- one shard overflows, at two of the steps
        local spoiled = name == "16-mixed" and (step == 3 or step == 8) and xs[1][1]:item() == x[1][1]:item()
        if spoiled then loss = loss * 1e38 * 1e3 end
        scaler:scale(loss):backward()
      end
      losses[#losses + 1] = ddp:loss()
    end
    for i = 1, accumulate do
      if holds and i < accumulate then ddp:no_sync(batch) else batch() end
    end
    scaler:step(opt, { clip = 0.5 })
    scaler:update()
  end
  hash = 0xCBF29CE484222325
  for pname, p in ddp.module:named_parameters() do add(pname) add_value(p) end
  for bname, b in ddp.module:named_buffers() do add(bname) add_value(b) end
  add_value(opt:state_dict())
  add_value(scaler:state_dict())
  add_value(losses)
  add_value(gb.get_rng_state and { gb.get_rng_state() } or {})
  local skipped = name == "16-mixed" and scaler:stats().skipped or 0
  return ("%-10s %-6s %s %d: %016x, %d skipped, last loss %.6f"):format(name, optimizer,
    holds and "no_sync" or "accumulate", accumulate, hash, skipped, losses[#losses])
end

local rows = {}
for _, name in ipairs { "32-true", "bf16-mixed", "16-mixed" } do
  for _, optimizer in ipairs { "SGD", "AdamW" } do
    for _, accumulate in ipairs { 1, 4 } do rows[#rows + 1] = train(name, optimizer, accumulate) end
  end
end
rows[#rows + 1] = train("bf16-mixed", "SGD", 3, true)
rows[#rows + 1] = train("16-mixed", "AdamW", 3, true)
-- Bodies that put another tensor in the place of a gradient, which no optimizer has adopted.
local function replace(how, body)
  gb.manual_seed(3)
  local ddp = nn.parallel.DataParallel(nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3)),
    { shards = 8, overlap = true })
  hash = 0xCBF29CE484222325
  for _ = 1, 3 do
    for _, p in ipairs(ddp.module:parameters()) do p.grad = nil end
    for xs in ddp:shards(gb.randn(24, 6)) do
      ddp(xs):square():mean():backward()
      body(ddp, xs)
    end
    for _, p in ipairs(ddp.module:parameters()) do add_value(p.grad) end
  end
  return ("gradients %s: %016x"):format(how, hash)
end
rows[#rows + 1] = replace("doubled", function(ddp)
  for _, p in ipairs(ddp.module:parameters()) do p.grad = p.grad * 2 end
end)
rows[#rows + 1] = replace("of a second backward with a graph", function(ddp, xs)
  ddp(xs):abs():mean():backward { create_graph = true }
end)

local text = table.concat(rows, "\n")
if dist.rank() == 0 and arg then print(text) end
return text
