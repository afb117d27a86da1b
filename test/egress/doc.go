// Package egress has the tests of egress lists on the whole node. Each compares containers with a list to those without one.
package egress
