-- unet.lua - a U-Net that draws the membranes of cells in pictures of an electron microscope, in mixed precision.
--
--   gibbous recipes/unet.lua --data FOLDER --images FOLDER     (image/N.png and label/N.png: membranes are black)
--
-- The network is that of Ronneberger, Fischer, Brox 2015 with norms, a quarter as wide. It learns from crops that are
-- bent, turned and mirrored at random, since there are only 24 pictures, and is tested on whole ones: the last six.
-- Dice is twice the overlap by the sum of both areas, IoU the overlap by the area of either, both of membranes. Expect
-- a Dice of 0.77 after 40 epochs; PyTorch in float32 reaches 0.804 in 1,000 steps (167 epochs); allow ten minutes.

local gb = require "gibbous"
local nn, F, data = gb.nn, gb.nn.functional, gb.data

local args = gb.args {
  { "data", "", "folder with image/N.png and label/N.png, N from 0", needed = true },
  { "first_test", 24, "pictures from this number on test", least = 1 },
  { "precision", "bf16-mixed", "32-true, 16-mixed, bf16-mixed, 16-true or bf16-true" },
  { "device", gb.best_device(), "cpu, cuda or cuda:N" },
  { "epochs", 167, "passes over the pictures", least = 1 }, { "batch", 4, "crops a step", least = 1 },
  { "lr", 1e-3, "of AdamW, at its highest", least = 0 }, { "seed", 1, "same seed, same bits" },
  { "width", 16, "channels of the largest maps", least = 1 }, { "levels", 4, "times the maps are halved", least = 1 },
  { "crop", 128, "pixels of a training picture; 2^levels divides them", least = 1 },
  { "augment", true, "take crops anywhere, bend and mirror them; else the middles of the pictures" },
  { "workers", 2, "threads that read and transform pictures", least = 0 },
  { "images", "", "folder that exists, for what is drawn of the test pictures (\"\": none)" },
  { "out", "unet.safetensors", "where the weights go (\"\": nowhere)", writes = true },
  { "checkpoint", "", "folder for a checkpoint after every checkpoint_every epochs" },
  { "checkpoint_every", 20, "epochs between two checkpoints", least = 1 },
  { "resume", "", "a checkpoint to continue from" },
}
gb.manual_seed(args.seed)

-- Two convolutions, each with a norm and its ReLU.
local function convs(inputs, outputs)
  return nn.Sequential(
    nn.Conv2d(inputs, outputs, 3, { padding = 1, bias = false }), nn.BatchNorm2d(outputs, { activation = "relu" }),
    nn.Conv2d(outputs, outputs, 3, { padding = 1, bias = false }), nn.BatchNorm2d(outputs, { activation = "relu" })
  )
end

local UNet = nn.Module:extend("UNet")
function UNet:init(width, levels)
  self.down, self.up, self.merge = {}, {}, {}
  for level = 1, levels do
    self.down[level] = convs(level == 1 and 1 or width << (level - 2), width << (level - 1))
    self.up[level] = nn.ConvTranspose2d(width << level, width << (level - 1), 2, { stride = 2 })
    self.merge[level] = convs(width << level, width << (level - 1))
  end
  self.middle = convs(width << (levels - 1), width << levels)
  self.head = nn.Conv2d(width, 1, 1)
end
function UNet:forward(x)
  local kept = {}
  for level, block in ipairs(self.down) do
    kept[level] = block(x)
    x = F.max_pool2d(kept[level], 2)
  end
  x = self.middle(x)
  for level = #kept, 1, -1 do x = self.merge[level](gb.cat({ kept[level], self.up[level](x) }, 2)) end
  return self.head(x):squeeze(2) -- above 0: a membrane
end

-- The pictures of the numbers that are wanted, in the order of the files, and the names of their files.
local paths = data.files(args.data .. "/image", { ending = ".png" })
local function pictures(transform, wanted)
  local all = data.images(args.data .. "/image", {
    mode = "gray", masks = args.data .. "/label", levels = { 0, 255 }, transform = data.transforms.compose(transform),
  })
  local positions, names = {}, {}
  for i, path in ipairs(paths) do
    local number = tonumber(path:match "(%d+)%.png$") or error("unet: " .. path .. " has no number", 0)
    if wanted(number) then
      table.insert(positions, i)
      table.insert(names, number .. ".png")
    end
  end
  return all:subset(positions), names
end

local T = data.transforms
local to_numbers, scale = T.to_float(), T.normalize(0.5, 0.25)
local varied = {
  T.random_crop(args.crop + 32), T.elastic { alpha = 40, sigma = 5 }, T.center_crop(args.crop), T.flip(),
  T.flip { direction = "vertical" }, to_numbers, scale,
}
local train = pictures(args.augment and varied or { T.center_crop(args.crop), to_numbers, scale },
  function(number) return number < args.first_test end)
local test, names = pictures({ to_numbers, scale }, function(number) return number >= args.first_test end)

-- The loss of a batch, and what the measures compare: membranes are the labels of class 0.
local function compute(model, x, label)
  local drawn, truth = model(x), label:eq(0)
  return F.binary_cross_entropy_with_logits(drawn, truth:float()), drawn, truth
end

local trainer = gb.Trainer {
  model = UNet(args.width, args.levels), compute = compute, metrics = { "dice", "iou" },
  optimizer = { "AdamW", lr = args.lr, weight_decay = 1e-2 },
  schedule = { "Cosine", warmup = 20 },
  precision = args.precision, device = args.device, epochs = args.epochs,
  checkpoint = args.checkpoint ~= "" and { args.checkpoint, keep = 2, every_epochs = args.checkpoint_every } or nil,
  resume = args.resume ~= "" and args.resume,
}
trainer:fit(data.DataLoader(train, {
  batch_size = args.batch, shuffle = true, seed = args.seed, workers = args.workers,
}))
local whole = data.DataLoader(test)
local values = trainer:validate(whole)
print(("dice %.4f, IoU %.4f"):format(values.val_dice, values.val_iou))
if args.out ~= "" then gb.save(args.out, trainer.model:state_dict()) end
if args.images ~= "" then
  local drawn = trainer:predict(whole):float():neg():sigmoid() -- membranes are black
  for i, name in ipairs(names) do gb.io.save_image(args.images .. "/" .. name, drawn:narrow(1, i, 1)) end
end
