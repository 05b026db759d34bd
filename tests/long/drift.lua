-- drift.lua - a long run in 16-mixed whose loss overflows on purpose now and then, beside an unscaled float32 control.
--
--   gibbous tests/long/drift.lua STEPS
--
-- Scale, skips and counters must be, at every step, those of PyTorch's rule, which is computed here once more in plain
-- Lua from nothing but whether the gradients were finite. The control sees the same batches and leaves out the same
-- steps. Two float32 runs drift apart too, once their weights differ by a rounding: a third model, a float32 one that
-- began from weights rounded to float16, is the measure of that.

local gb = require "gibbous"
local nn, F, amp, optim = gb.nn, gb.nn.functional, gb.amp, gb.optim
local STEPS = math.tointeger(arg and arg[1]) or 500
local BLOCK, BATCH, WIDTH, WORDS, INTERVAL = 16, 8, 32, 24, 25

local passed, failed = 0, 0
local function check(ok, text, ...)
  if ok then passed = passed + 1 return end
  failed = failed + 1
  if failed <= 10 then print("FAILED  " .. text:format(...)) end
end

-- A small GPT, as recipes/char_gpt.lua has it.
local GPT = nn.Module:extend("GPT")
function GPT:init()
  self.tokens, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(BLOCK, WIDTH)
  self.norm1, self.norm2, self.norm3 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
  self.attention = nn.MultiheadAttention(WIDTH, 2, { is_causal = true })
  self.mlp = nn.MLP(WIDTH, 4 * WIDTH, { activation = "gelu" })
end
function GPT:forward(ids, targets)
  local x = self.tokens(ids) + self.positions(gb.arange(BLOCK))
  x = x + self.attention(self.norm1(x))
  x = x + self.mlp(self.norm2(x))
  return F.linear_cross_entropy(self.norm3(x):flatten(1, 2), self.tokens.weight, targets:flatten())
end

local function new_run(precision)
  local run = { model = GPT(), precision = amp.precision(precision), losses = 0 }
  run.opt = optim.AdamW(run.model:parameters(), { lr = 2e-3, weight_decay = 0.1 })
  run.schedule = optim.lr.Cosine(run.opt, { warmup = 20, steps = STEPS, last = 0 })
  return run
end

local function loss_of(run, x, y) return amp.autocast(run.precision, function() return run.model(x, y) end) end

local function are_finite(model)
  local finite = true
  for _, p in ipairs(model:parameters()) do finite = finite and p.grad:isfinite():all():item() end
  return finite
end

local function step_plain(run, x, y)
  run.opt:zero_grad()
  local loss = loss_of(run, x, y)
  loss:backward()
  run.opt:step()
  run.schedule:step()
  run.losses = run.losses + loss:item()
end

-- {==== PyTorch's rule (torch.amp.GradScaler.update), from whether the gradients were finite ====

local rule = { scale = 65536.0, tracker = 0, steps = 0, skipped = 0, in_a_row = 0 }
local function float32(x) return (string.unpack("f", string.pack("f", x))) end

function rule.update(finite)
  if not finite then
    rule.scale, rule.tracker, rule.skipped, rule.in_a_row = float32(rule.scale * 0.5), 0, rule.skipped + 1,
      rule.in_a_row + 1
    return
  end
  rule.steps, rule.in_a_row, rule.tracker = rule.steps + 1, 0, rule.tracker + 1
  if rule.tracker < INTERVAL then return end
  local grown = float32(rule.scale * 2)
  if grown < math.huge then rule.scale = grown end
  rule.tracker = 0
end

-- ====}

-- Words follow one another by a rule with exceptions, so that there is something to learn and something to get wrong.
local function batch(step)
  local ids, state = {}, step * 7919 % 65521 + 1
  for b = 1, BATCH do
    local word = state % WORDS
    ids[b] = {}
    for i = 1, BLOCK + 1 do
      ids[b][i] = word
      state = state * 17364 % 65521
      word = state % 5 == 0 and state % WORDS or (word * 5 + 3) % WORDS
    end
  end
  local t = gb.tensor(ids)
  return t:narrow(2, 1, BLOCK), t:narrow(2, 2, BLOCK)
end

-- Which losses overflow on purpose: one in 61, and now and then three in a row.
local function overflows(step) return step % 61 == 0 or step % 500 >= 250 and step % 500 < 253 end

gb.manual_seed(5)
local mixed, control, rounded = new_run("16-mixed"), new_run("32-true"), new_run("32-true")
local start = mixed.model:state_dict()
for name, t in pairs(start) do start[name] = t:clone() end
control.model:load_state_dict(start)
local once = {}
for name, t in pairs(start) do once[name] = t:half():float() end
rounded.model:load_state_dict(once)
local scaler = amp.GradScaler(mixed.precision, { growth_interval = INTERVAL })

for step = 1, STEPS do
  local x, y = batch(step)
  mixed.opt:zero_grad()
  local loss = loss_of(mixed, x, y)
  scaler:scale(overflows(step) and loss * 1e38 or loss):backward()
  local finite = are_finite(mixed.model)
  check(not (overflows(step) and finite), "step %d: gradients of an infinite loss are finite", step)
  scaler:step(mixed.opt)
  scaler:update()
  rule.update(finite)
  local stats = scaler:stats()
  check(stats.scale == rule.scale and scaler:get_scale() == rule.scale, "step %d: the scale is %g, PyTorch's %g", step,
    stats.scale, rule.scale)
  check(stats.growth_tracker == rule.tracker and stats.steps == rule.steps and stats.skipped == rule.skipped
    and stats.skipped_in_a_row == rule.in_a_row and stats.last_skipped == not finite,
      "step %d: the counters are not PyTorch's", step)
  if finite then
    mixed.schedule:step()
    mixed.losses = mixed.losses + loss:item()
    step_plain(control, x, y)
    step_plain(rounded, x, y)
  end
end

for i, state in ipairs(mixed.opt:state_dict().state) do
  check(state.steps == rule.steps, "parameter %d counts %d steps, %d were not skipped", i, state.steps, rule.steps)
end

-- The distance between the weights of two models, as a share of the way that the control has come.
local function distance(a, b)
  local sum = 0.0
  for name, t in pairs(a) do sum = sum + (t:double() - b[name]:double()):square():sum():item() end
  return math.sqrt(sum)
end
local weights = control.model:state_dict()
local way = distance(weights, start)
local drift, measure = distance(mixed.model:state_dict(), weights) / way,
  distance(rounded.model:state_dict(), weights) / way
local mean = control.losses / rule.steps
print(("%d steps, %d skipped, scale %g; weights %.3g of the way from the control's, %.3g after one rounding at the \z
  start"):format(STEPS, rule.skipped,
  rule.scale, drift, measure))
print(("mean loss %.5f mixed, %.5f control, %.5f rounded"):format(mixed.losses / rule.steps, mean,
  rounded.losses / rule.steps))
-- Half a spacing of float16 is 2^-11 of a number. A step passes some dozens of roundings, which do not add up over
-- steps; the loss is a mean over the whole run, in which they cancel.
check(drift <= 64 * 2 ^ -11, "the weights lie %.3g of the way from the control's, more than 64 roundings of float16",
  drift)
check(math.abs(mixed.losses / rule.steps - mean) <= 2 ^ -11 * mean, "the mean loss is more than a rounding of \z
  float16 from the control's")
check(rule.skipped >= STEPS // 61, "only %d steps were skipped", rule.skipped)
check(rule.scale >= 1 and rule.scale < 2 ^ 40, "the scale ended at %g", rule.scale)

print(("%d passed, %d failed"):format(passed, failed))
os.exit(failed == 0)
