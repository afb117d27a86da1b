// Package compiled keeps the machine code that longshore-wasm has compiled of WebAssembly modules, for its workers. A
// directory for root only has an entry for each module, version of wazero and kind of processor. Start reading at
// Cache.
package compiled
