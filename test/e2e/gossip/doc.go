// Package gossip has our member of a Swarm's gossip and members by other versions of Docker's
// networkdb speak with each other, each of those a process that orders drive (package peer). The
// versions are modules of their own: they are peers, and no part of us depends on them.
package gossip
