-- killed.lua FOLDER - a Trainer that saves in FOLDER after every second step, with an optimizer that is shared out, and
-- goes on from there. Each rank writes its process's number to FOLDER/RANK; rank 0 prints the step of each save, and a
-- digest of the weights in the end.

local gb = require "gibbous"
local nn, data, digest = gb.nn, gb.data, dofile "tests/dist/digest.lua"
local folder = arg[1]
gb.manual_seed(3)
gb.dist.init()
local model = nn.Sequential(nn.Linear(8, 300), nn.ReLU(), nn.Dropout(0.3), nn.Linear(300, 4))
local loader = data.DataLoader(data.TensorDataset(gb.randn(100, 8), gb.randint(0, 4, { 100 })),
  { batch_size = 20, shuffle = true })
local trainer = gb.Trainer { model = model, loss = nn.functional.cross_entropy, precision = "bf16-mixed",
  optimizer = gb.optim.Sharded(gb.optim.AdamW(model:parameters(), { lr = 0.01 })), device = "cpu", epochs = 8,
  progress = false, shards = 8, resume = true, checkpoint = { folder .. "/files", every_steps = 2, keep = 2 }, on = {
    start = function(t)
      local file <close> = assert(io.open(folder .. "/" .. gb.dist.rank(), "w"))
      file:write(assert(io.open("/proc/self/stat")):read("a"):match("^%d+"), "\n")
      if t.step > 0 and gb.dist.rank() == 0 then print("goes on after step " .. t.step) end
    end,
    step = function() os.execute("sleep 0.02") end,
    save = function(t)
      if gb.dist.rank() == 0 then print("saved at step " .. t.step) end
      io.stdout:flush()
    end } }
trainer:fit(loader)
if gb.dist.rank() == 0 then
  print(("digest %s after %d steps"):format(digest(model), trainer.step))
end
