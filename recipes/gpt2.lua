-- gpt2.lua - GPT-2, 124M to 1.5B parameters, trained from scratch on a file of token ids, in mixed precision.
--
--   gibbous recipes/gpt2.lua --data train.bin --valid valid.bin --model 124M --batch 16 --accumulate 32
--
-- A file holds 16-bit ids, with or without llm.c's header. --dtype reads other ids; "uint8" reads any file by bytes.

local gb = require "gibbous"
local nn, F, amp, optim, data = gb.nn, gb.nn.functional, gb.amp, gb.optim, gb.data

local args = gb.args {
  { "data", "", "the file of token ids to learn from", needed = true },
  { "valid", "", "a file to validate on (none: the last hundredth of data)" },
  { "dtype", "uint16", "the type of an id in the files: uint16, int32 or uint8" },
  { "model", "124M", "124M, 355M, 774M, 1.5B, or tiny to try things out" },
  { "vocabulary", 50304, "how many ids there are; GPT-2's 50,257 are rounded up to a multiple of 64", least = 1 },
  { "precision", "bf16-mixed", "32-true, 16-mixed, bf16-mixed, 16-true or bf16-true" },
  { "device", gb.best_device(), "cpu, cuda or cuda:N" },
  { "seed", 1, "same seed, same bits" },
  { "steps", 20000, "of the optimizer", least = 1 }, { "batch", 16, "sequences at once", least = 1 },
  { "block", 0, "tokens of context (0: all the model has)", least = 0 },
  { "accumulate", 1, "batches whose gradients are summed for one step", least = 1 },
  { "recompute", false, "keep only the inputs of blocks, and run them again in backward: less memory, more work" },
  { "lr", 6e-4, least = 0 }, { "min_lr", 6e-5, least = 0 }, { "warmup", 700, least = 0 },
  { "weight_decay", 0.1, least = 0 }, { "dropout", 0.0, least = 0 },
  { "clip", 1.0, "the largest norm of the gradients (0: any)", least = 0 },
  { "valid_every", 250, least = 1 }, { "valid_batches", 20, "random batches of a validation", least = 1 },
  { "out", "gpt2.safetensors", "where the weights go (\"\": nowhere)", writes = true },
  { "checkpoint", "", "write a checkpoint here, every checkpoint_every steps", writes = true },
  { "checkpoint_every", 1000, least = 1 }, { "resume", "", "a checkpoint to continue from" },
  { "stop_at", 0, "stop after this step (0: run to the end)", least = 0 },
}
local sizes = {
  ["tiny"] = { layers = 2, heads = 2, width = 32, context = 64 },
  ["124M"] = { layers = 12, heads = 12, width = 768, context = 1024 },
  ["355M"] = { layers = 24, heads = 16, width = 1024, context = 1024 },
  ["774M"] = { layers = 36, heads = 20, width = 1280, context = 1024 },
  ["1.5B"] = { layers = 48, heads = 25, width = 1600, context = 1024 },
}
local size = sizes[args.model]
  or error(("gpt2: --model is 124M, 355M, 774M, 1.5B or tiny, not '%s'"):format(args.model), 0)
local block = args.block == 0 and size.context or args.block
if block > size.context then
  error(("gpt2: --block lies between 1 and the model's %d, got %d"):format(size.context, block), 0)
end
gb.manual_seed(args.seed)
local precision = amp.precision(args.precision)

local all = data.tokens(args.data, { dtype = args.dtype })
local train, valid = all:split(0.99)
if args.valid ~= "" then train, valid = all, data.tokens(args.valid, { dtype = args.dtype }) end

local GPT2 = nn.Module:extend("GPT2")
function GPT2:init()
  self.tokens = nn.Embedding(args.vocabulary, size.width)
  self.positions = nn.Embedding(size.context, size.width)
  self.drop = nn.Dropout(args.dropout)
  self.blocks = {}
  for i = 1, size.layers do
    self.blocks[i] = nn.TransformerBlock(size.width, size.heads,
      { dropout = args.dropout, is_causal = true, norm_out = "autocast" })
  end
  self.norm = nn.LayerNorm(size.width, { out = "autocast" })
  self:apply(function(module) -- GPT-2's initialisation; the head is the token table, transposed
    if module.weight and module.weight.ndim == 2 then nn.init.normal_(module.weight, 0, 0.02) end
    if module.bias then nn.init.zeros_(module.bias) end
  end)
  for _, part in ipairs(self.blocks) do -- each block adds to the stream twice: 2 * layers terms of the same variance
    nn.init.normal_(part.attention.proj.weight, 0, 0.02 / math.sqrt(2 * size.layers))
    nn.init.normal_(part.mlp.fc2.weight, 0, 0.02 / math.sqrt(2 * size.layers))
  end
end
function GPT2:loss(ids, targets)
  local time = gb.arange(ids:size(2), { device = ids.device })
  local x = self.drop(self.tokens(ids) + self.positions(time))
  for _, part in ipairs(self.blocks) do x = args.recompute and gb.recompute(part, x) or part(x) end
  return F.linear_cross_entropy(self.norm(x):flatten(1, 2), self.tokens.weight, targets:flatten())
end

local model = GPT2():to(args.device, precision)
local parameters, count, step = model:parameters(), 0, 0
for _, p in ipairs(parameters) do count = count + p:numel() end
local groups = optim.groups(model, { weight_decay = args.weight_decay })
local opt = optim.AdamW(groups, { lr = args.lr, betas = { 0.9, 0.95 } })
local schedule = optim.lr.Cosine(opt, {
  warmup = args.warmup, steps = math.max(args.steps - args.warmup, 1), last = args.min_lr / args.lr,
})
local scaler = amp.GradScaler(precision)
local loader = data.DataLoader(train:windows(block), {
  batch_size = args.batch, batches = args.steps * args.accumulate, seed = args.seed,
})

-- The mean loss over random windows of the validation file, the same windows every time.
local function validate()
  local total, windows = 0.0, data.DataLoader(valid:windows(block), {
    batch_size = args.batch, batches = args.valid_batches, seed = 1234,
  })
  model:eval()
  gb.no_grad(function()
    for x, y in windows:iter(args.device) do
      total = total + amp.autocast(precision, function() return model:loss(x, y) end):item()
    end
  end)
  model:train()
  return total / args.valid_batches
end

local parts = { model = model, optimizer = opt, scaler = scaler, schedule = schedule, loader = loader }
if args.resume ~= "" then
  local extra = gb.io.load_checkpoint(args.resume, parts)
  step = extra.step
  if extra.seed ~= args.seed then
    print(("the random state of %s goes on, and --seed %d is not used"):format(args.resume, args.seed))
  end
  args.seed = extra.seed
end

print(("gpt2: %s, %.1f million parameters, %s on %s, %d tokens to learn from, %d a step"):format(args.model,
  count / 1e6, tostring(precision), args.device, #train, args.batch * block * args.accumulate))
local bar = gb.progress(args.steps - step, "train", {
  unit = "tokens", unit_size = args.batch * block * args.accumulate,
})
local batch, mean = 0, nil -- batches of this step so far; their mean loss, on the device until the bar is drawn
for x, y in loader:iter(args.device) do
  if batch == 0 then opt:zero_grad() end
  local loss = amp.autocast(precision, function() return model:loss(x, y) end) / args.accumulate
  scaler:scale(loss):backward()
  mean = mean and mean + loss:detach() or loss:detach()
  batch = batch + 1
  if batch == args.accumulate then
    scaler:unscale_(opt)
    local norm = nn.utils.clip_grad_norm_(parameters, args.clip > 0 and args.clip or math.huge)
    scaler:step(opt)
    scaler:update()
    schedule:step()
    step = step + 1
    bar:update(1, { loss = mean, norm = norm, step = step })
    batch, mean = 0, nil
    if step % args.valid_every == 0 and step < args.steps then
      print(("step %d: validation loss %.4f"):format(step, validate()))
    end
    if args.checkpoint ~= "" and (step % args.checkpoint_every == 0 or step == args.stop_at) then
      parts.extra = { step = step, seed = args.seed }
      gb.io.save_checkpoint(args.checkpoint, parts)
    end
    if step == args.stop_at then return end
  end
end
bar:close(("validation loss %.4f"):format(validate()))
if args.out ~= "" then gb.save(args.out, model:state_dict()) print("weights: " .. args.out) end
