// Package client has Kata's own Go client of the agent drive longshore-guest over every
// call. run.sh finds Kata's sources, without which nothing here can be built.
package client
