// Package compiled keeps what longshore-wasm has compiled of WebAssembly modules: machine code, which workers execute. A directory
// that only root may look into has an entry for each module, version of wazero and kind of processor. Start reading at Cache.
package compiled
