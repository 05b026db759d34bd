-- cifar_vit.lua - vision transformers from tiny to large, over small pictures or large ones, with gb.Trainer.
--
--   gibbous recipes/cifar_vit.lua --data FOLDER     (train/CLASS/*.jpg and test/CLASS/*.jpg, 32 x 32)
--
-- Dosovitskiy et al. 2021: a picture is cut into patches, each a token; a class token reads them all. Blocks are left
-- out at random, the deeper the more often (stochastic depth, Huang et al. 2016), and two pictures are mixed into one
-- (mixup, Zhang et al. 2018). --recompute keeps only the inputs of blocks, as the large models need. PyTorch in float32
-- reaches 49.4 % after 4 epochs of a tiny model on 20,000 pictures of CIFAR-10 (transformers want more data than that);
-- allow ten minutes on two cores.

local gb = require "gibbous"
local nn, F, data = gb.nn, gb.nn.functional, gb.data
local T = data.transforms

local args = gb.args {
  { "data", "", "folder with train and test, each with a folder per class", needed = true },
  { "model", "tiny", "tiny, s16, b16 or l16" },
  { "precision", "bf16-mixed", "32-true, 16-mixed, bf16-mixed, 16-true or bf16-true" },
  { "device", gb.best_device(), "cpu, cuda or cuda:N" },
  { "epochs", 4, "passes over the pictures", least = 1 }, { "batch", 128, "pictures a step", least = 2 },
  { "lr", 1e-3, "of AdamW, at its highest", least = 0 }, { "seed", 1, "same seed, same bits" },
  { "steps", 0, "stop after so many, within an epoch without a test (0: after the epochs)", least = 0 },
  { "augment", true, "shift and mirror pictures that train" },
  { "mixup", 0.2, "alpha of the shares of two pictures (0: none)", least = 0 },
  { "drop_path", 0.1, "how often the last block is left out", least = 0 },
  { "recompute", false, "keep only the inputs of blocks for backward: less memory, more time" },
  { "workers", 2, "threads that read and transform pictures", least = 0 },
  { "out", "cifar_vit.safetensors", "where the weights go (\"\": nowhere)", writes = true },
  { "checkpoint", "", "folder for a checkpoint after every epoch" },
  { "resume", "", "a checkpoint to continue from" },
}

-- By name: features of a token, blocks, heads, pixels of a patch and of a picture, to which all are scaled.
local models = {
  tiny = { width = 128, layers = 4, heads = 4, patch = 4, pixels = 32 },
  s16 = { width = 384, layers = 12, heads = 6, patch = 16, pixels = 224 },
  b16 = { width = 768, layers = 12, heads = 12, patch = 16, pixels = 224 },
  l16 = { width = 1024, layers = 24, heads = 16, patch = 16, pixels = 224 },
}
local shape = models[args.model] or error("cifar_vit: --model is tiny, s16, b16 or l16", 0)
gb.manual_seed(args.seed)

local ViT = nn.Module:extend("ViT")
function ViT:init(classes)
  local width, tokens = shape.width, (shape.pixels // shape.patch) ^ 2 // 1 | 0
  self.patches = nn.PatchEmbed(3, width, shape.patch)
  self.class = nn.Parameter(gb.zeros(1, 1, width))
  self.positions = nn.Parameter(gb.randn(1, tokens + 1, width) * 0.02)
  self.blocks = {}
  for i = 1, shape.layers do
    self.blocks[i] = nn.TransformerBlock(width, shape.heads, {
      activation = "gelu", drop_path = args.drop_path * (i - 1) / (shape.layers - 1), eps = 1e-6,
    })
  end
  self.norm = nn.LayerNorm(width, { eps = 1e-6 })
  self.head = nn.Linear(width, classes)
  self:apply(function(module)
    if module.weight and module.weight.ndim == 2 then nn.init.trunc_normal_(module.weight, 0, 0.02) end
  end)
end
function ViT:forward(x)
  x = self.patches(x)
  x = gb.cat({ self.class:expand(x:size(1), 1, shape.width):to(x.dtype), x }, 2) + self.positions
  for _, block in ipairs(self.blocks) do x = block(x) end
  return self.head(self.norm(x:select(2, 1))) -- what the class token has read
end

-- The pictures of a folder, of the model's size; varied: shifted and mirrored.
local function pictures(part, varied)
  local steps = { T.to_float(), T.normalize({ 0.491, 0.482, 0.447 }, { 0.247, 0.244, 0.262 }) }
  if varied then
    steps = { T.random_crop(shape.pixels, { padding = shape.pixels // 8 }), T.flip(), table.unpack(steps) }
  end
  if shape.pixels > 32 then table.insert(steps, 1, T.resize { shape.pixels, shape.pixels }) end
  return data.images(args.data .. "/" .. part, { transform = T.compose(steps) })
end
local train, test = pictures("train", args.augment), pictures("test", false)
local classes = #train:classes()

-- The loss of a batch, in training of mixed pictures.
local function compute(model, x, y)
  local truth = y
  if model.training and args.mixup > 0 then x, truth = T.mixup(x, y, { classes = classes, alpha = args.mixup }) end
  local logits = model(x)
  return F.cross_entropy(logits, truth), logits, y
end

local trainer = gb.Trainer {
  model = ViT(classes), compute = compute, metrics = { "accuracy" },
  optimizer = { "AdamW", lr = args.lr, weight_decay = 0.05 }, schedule = { "Cosine", warmup = 0.1 }, clip = 1.0,
  precision = args.precision, device = args.device, epochs = args.epochs, steps = args.steps > 0 and args.steps or nil,
  recompute = args.recompute and "blocks%.%d+" or nil,
  checkpoint = args.checkpoint ~= "" and { args.checkpoint, keep = 2 } or nil,
  resume = args.resume ~= "" and args.resume,
}
local values = trainer:fit(
  data.DataLoader(train, {
    batch_size = args.batch, shuffle = true, drop_last = true, seed = args.seed, workers = args.workers,
  }),
  data.DataLoader(test, { batch_size = args.batch, workers = args.workers })
)
if values.val_accuracy then print(("test accuracy %.2f %%"):format(100 * values.val_accuracy)) end
if args.out ~= "" then gb.save(args.out, trainer.model:state_dict()) end
