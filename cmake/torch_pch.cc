// Compiled once to give the precompiled header of LibTorch an owner; see CMakeLists.txt.
