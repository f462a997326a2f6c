"""The engines that `./dev bench peers` sets side by side: ours and those that people could pick instead."""
