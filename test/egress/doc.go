// Package egress has the tests of egress lists on the whole node: containers of all faces, whose connections are compared with
// those of containers without a list.
package egress
