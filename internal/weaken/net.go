package weaken

// ConnectionRoom closes idle and unauthenticated connections where a listener has no
// room for more; without it new ones wait until others end by themselves.
const ConnectionRoom Defence = "connection-room"
