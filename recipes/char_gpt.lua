-- char_gpt.lua - a small GPT that learns to write one character after another, in mixed precision.
--
--   gibbous recipes/char_gpt.lua --data input.txt        (the defaults are nanoGPT's CPU setting)

local gb = require "gibbous"
local nn, F, amp, optim, data = gb.nn, gb.nn.functional, gb.amp, gb.optim, gb.data

local args = gb.args {
  { "data", "", "a text file to learn from", needed = true },
  { "precision", "bf16-mixed", "32-true, 16-mixed, bf16-mixed, 16-true or bf16-true" },
  { "device", gb.best_device(), "cpu, cuda or cuda:N" },
  { "seed", 1, "same seed, same bits" },
  { "steps", 2000, least = 1 }, { "batch", 12, least = 1 }, { "block", 64, "characters of context", least = 1 },
  { "layers", 4, least = 1 }, { "heads", 4, least = 1 }, { "width", 128, least = 1 }, { "dropout", 0.0, least = 0 },
  { "lr", 1e-3, least = 0 }, { "min_lr", 1e-4, least = 0 }, { "warmup", 100, least = 0 },
  { "weight_decay", 0.1, least = 0 },
  { "clip", 1.0, "the largest norm of the gradients (0: any)", least = 0 },
  { "eval_batches", 200, "random batches of the last evaluation", least = 1 },
  { "sample", 400, "characters to write at the end", least = 0 },
  { "out", "char_gpt.safetensors", "where the weights go (\"\": nowhere)", writes = true },
  { "checkpoint", "", "write a checkpoint here, every checkpoint_every steps", writes = true },
  { "checkpoint_every", 500, least = 1 },
  { "resume", "", "a checkpoint to continue from" },
  { "stop_at", 0, "stop after this step (0: run to the end)", least = 0 },
  { "audit", false, "show what each op of the first step runs in, and stop" },
}
gb.manual_seed(args.seed)
local precision = amp.precision(args.precision)

-- The first 90 % of the text trains, the rest validates.
local text = data.text(args.data)
local train, valid = text:split(0.9)

local GPT = nn.Module:extend("GPT")
function GPT:init(vocabulary)
  self.tokens = nn.Embedding(vocabulary, args.width)
  self.positions = nn.Embedding(args.block, args.width)
  self.drop = nn.Dropout(args.dropout)
  self.blocks = {}
  for i = 1, args.layers do
    self.blocks[i] = nn.TransformerBlock(args.width, args.heads, {
      bias = false, activation = "gelu", dropout = args.dropout, is_causal = true,
    })
  end
  self.norm = nn.LayerNorm(args.width, { bias = false })
  self:apply(function(module) -- GPT-2's initialisation; the head is the token table, transposed
    if module.weight and module.weight.ndim == 2 then nn.init.normal_(module.weight, 0, 0.02) end
  end)
  for _, block in ipairs(self.blocks) do
    nn.init.normal_(block.attention.proj.weight, 0, 0.02 / math.sqrt(2 * args.layers))
    nn.init.normal_(block.mlp.fc2.weight, 0, 0.02 / math.sqrt(2 * args.layers))
  end
end
function GPT:features(ids)
  local time = gb.arange(ids:size(2), { device = ids.device })
  local x = self.drop(self.tokens(ids) + self.positions(time))
  for _, block in ipairs(self.blocks) do x = block(x) end
  return self.norm(x)
end
function GPT:loss(ids, targets)
  return F.linear_cross_entropy(self:features(ids):flatten(1, 2), self.tokens.weight, targets:flatten())
end
function GPT:next_logits(ids) return F.linear(self:features(ids)[{ {}, -1 }], self.tokens.weight) end

local model = GPT(text:vocabulary_size()):to(args.device, precision)
local groups = optim.groups(model, { weight_decay = args.weight_decay })
local opt = optim.AdamW(groups, { lr = args.lr, betas = { 0.9, 0.99 } })
local schedule = optim.lr.Cosine(opt, {
  warmup = args.warmup, steps = math.max(args.steps - args.warmup, 1), last = args.min_lr / args.lr,
})
local scaler = amp.GradScaler(precision)
local loader = data.DataLoader(train:windows(args.block), {
  batch_size = args.batch, batches = args.steps, seed = args.seed,
})

-- The mean loss over random windows of a text, the same windows every time.
local function evaluate(set, batches)
  model:eval()
  local total = 0.0
  gb.no_grad(function()
    local windows = data.DataLoader(set:windows(args.block), {
      batch_size = args.batch, batches = batches, seed = 1234,
    })
    for x, y in windows:iter(args.device) do
      total = total + amp.autocast(precision, function() return model:loss(x, y) end):item()
    end
  end)
  model:train()
  return total / batches
end

local parameters, step, losses = model:parameters(), 0, {}
local parts = { model = model, optimizer = opt, scaler = scaler, schedule = schedule, loader = loader }
if args.resume ~= "" then
  local extra = gb.io.load_checkpoint(args.resume, parts)
  step, losses = extra.step, extra.losses
  if extra.seed ~= args.seed then
    print(("the random state of %s goes on, and --seed %d is not used"):format(args.resume, args.seed))
  end
  args.seed = extra.seed
end

-- One step on one batch; the loss.
local function train_step(_, x, y)
  opt:zero_grad()
  local loss = amp.autocast(precision, function() return model:loss(x, y) end)
  scaler:scale(loss):backward()
  scaler:unscale_(opt)
  nn.utils.clip_grad_norm_(parameters, args.clip > 0 and args.clip or math.huge)
  scaler:step(opt)
  scaler:update()
  return loss
end

print(("char_gpt: %d characters, %d different, %s on %s"):format(#text, text:vocabulary_size(), tostring(precision),
  args.device))
local bar = gb.progress(args.steps - step, "train", { unit = "tokens", unit_size = args.batch * args.block })
for x, y in loader:iter(args.device) do
  if args.audit then
    amp.audit(model, train_step, x, y)
    return
  end
  local loss = train_step(model, x, y)
  schedule:step()
  step = step + 1
  losses[step] = loss:item()
  bar:update(1, { loss = losses[step], step = step })
  if args.checkpoint ~= "" and (step % args.checkpoint_every == 0 or step == args.stop_at) then
    parts.extra = { step = step, losses = losses, seed = args.seed }
    gb.io.save_checkpoint(args.checkpoint, parts)
  end
  if step == args.stop_at then return end
end
bar:close(("validation loss %.4f"):format(evaluate(valid, args.eval_batches)))
gb.plot(losses, { title = "training loss" })

-- Write: draw each character from the model's probabilities.
model:eval()
gb.no_grad(function()
  local ids = gb.zeros(1, 1, { dtype = "int64", device = args.device })
  for _ = 1, args.sample do
    local seen = ids:size(2) > args.block and ids:narrow(2, -args.block, args.block) or ids
    local logits = amp.autocast(precision, function() return model:next_logits(seen) end)
    ids = gb.cat({ ids, logits:softmax(-1):multinomial(1) }, 2)
  end
  print(text:decode(ids[1]))
end)
if args.out ~= "" then gb.save(args.out, model:state_dict()) print("weights: " .. args.out) end
