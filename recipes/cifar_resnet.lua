-- cifar_resnet.lua - residual networks that tell small pictures apart, with gb.Trainer.
--
--   gibbous recipes/cifar_resnet.lua --data FOLDER     (train/CLASS/*.jpg and test/CLASS/*.jpg, 32 x 32)
--
-- ResNet-20 is the network for small pictures of He, Zhang, Ren, Sun 2016 (three stages of 16, 32 and 64 channels),
-- ResNet-18 and 50 those for large ones, with a stem that keeps every pixel. Training pictures are shifted and
-- mirrored; the rate of SGD with momentum rises at first and falls along a cosine. PyTorch in float32 reaches 76.6 %
-- after 8 epochs of ResNet-20 on 20,000 pictures of CIFAR-10; allow ten minutes on two cores.

local gb = require "gibbous"
local nn, F, data = gb.nn, gb.nn.functional, gb.data

local args = gb.args {
  { "data", "", "folder with train and test, each with a folder per class", needed = true },
  { "model", "resnet20", "resnet20, resnet18 or resnet50" },
  { "precision", "bf16-mixed", "32-true, 16-mixed, bf16-mixed, 16-true or bf16-true" },
  { "device", gb.best_device(), "cpu, cuda or cuda:N" },
  { "epochs", 8, "passes over the pictures", least = 1 }, { "batch", 128, "pictures a step", least = 1 },
  { "seed", 1, "same seed, same bits" },
  { "lr", 0.1, "of SGD with momentum 0.9, at its highest", least = 0 },
  { "weight_decay", 5e-4, "of weights; none of biases and norms", least = 0 },
  { "augment", true, "shift and mirror pictures that train" },
  { "workers", 2, "threads that read and transform pictures", least = 0 },
  { "recompute", false, "keep only the inputs of blocks for backward: less memory, more time" },
  { "out", "cifar_resnet.safetensors", "where the weights go (\"\": nowhere)", writes = true },
  { "checkpoint", "", "folder for a checkpoint after every epoch" },
  { "resume", "", "a checkpoint to continue from" },
}

-- By name: how many blocks each stage has, the channels of the first, and whether blocks have a bottleneck.
local models = {
  resnet20 = { blocks = { 3, 3, 3 }, width = 16 },
  resnet18 = { blocks = { 2, 2, 2, 2 }, width = 64 },
  resnet50 = { blocks = { 3, 4, 6, 3 }, width = 64, bottleneck = true },
}
local shape = models[args.model] or error("cifar_resnet: --model is resnet20, resnet18 or resnet50", 0)
gb.manual_seed(args.seed)

-- A convolution without a bias, and its norm with an activation.
local function conv(inputs, outputs, kernel, stride, activation)
  local layer = nn.Conv2d(inputs, outputs, kernel, { stride = stride, padding = kernel // 2, bias = false })
  nn.init.kaiming_normal_(layer.weight, { mode = "fan_out", nonlinearity = "relu" })
  return nn.Sequential(layer, nn.BatchNorm2d(outputs, { activation = activation }))
end

-- x, or where its shape changes a projection of it, and two or three convolutions added, of which the last one's norm
-- takes the sum and its ReLU in.
local Block = nn.Module:extend("Block")
function Block:init(inputs, width, stride)
  if shape.bottleneck then
    self.outputs = 4 * width
    self.body = nn.Sequential(conv(inputs, width, 1, 1, "relu"), conv(width, width, 3, stride, "relu"))
    self.last = conv(width, 4 * width, 1, 1, "relu")
  else
    self.outputs = width
    self.body = conv(inputs, width, 3, stride, "relu")
    self.last = conv(width, width, 3, 1, "relu")
  end
  if stride > 1 or inputs ~= self.outputs then self.project = conv(inputs, self.outputs, 1, stride) end
end
function Block:forward(x)
  local layer, norm = self.last[1], self.last[2]
  return norm(layer(self.body(x)), self.project and self.project(x) or x)
end

local ResNet = nn.Module:extend("ResNet")
function ResNet:init(classes)
  self.stem = conv(3, shape.width, 3, 1, "relu")
  self.blocks = {}
  local channels = shape.width
  for stage, count in ipairs(shape.blocks) do
    for i = 1, count do
      local block = Block(channels, shape.width << (stage - 1), stage > 1 and i == 1 and 2 or 1)
      table.insert(self.blocks, block)
      channels = block.outputs
    end
  end
  self.head = nn.Linear(channels, classes)
end
function ResNet:forward(x)
  x = self.stem(x)
  for _, block in ipairs(self.blocks) do x = block(x) end
  return self.head(x:mean({ 3, 4 }))
end

local T = data.transforms
local to_numbers, scale = T.to_float(), T.normalize({ 0.491, 0.482, 0.447 }, { 0.247, 0.244, 0.262 })
local plain, varied = { to_numbers, scale }, { T.random_crop(32, { padding = 4 }), T.flip(), to_numbers, scale }
local train = data.images(args.data .. "/train", { transform = T.compose(args.augment and varied or plain) })
local test = data.images(args.data .. "/test", { transform = T.compose(plain) })
local loader = data.DataLoader(train, {
  batch_size = args.batch, shuffle = true, drop_last = true, seed = args.seed, workers = args.workers,
})

local trainer = gb.Trainer {
  model = ResNet(#train:classes()), loss = F.cross_entropy, metrics = { "accuracy" },
  optimizer = { "SGD", lr = args.lr, momentum = 0.9, nesterov = true, weight_decay = args.weight_decay },
  schedule = { "Cosine", warmup = 0.1 },
  precision = args.precision, device = args.device, epochs = args.epochs,
  recompute = args.recompute and "blocks%.%d+" or nil,
  checkpoint = args.checkpoint ~= "" and { args.checkpoint, keep = 2 } or nil,
  resume = args.resume ~= "" and args.resume,
}
local values = trainer:fit(loader, data.DataLoader(test, { batch_size = 500, workers = args.workers }))
print(("test accuracy %.2f %%"):format(100 * values.val_accuracy))
if args.out ~= "" then gb.save(args.out, trainer.model:state_dict()) end
