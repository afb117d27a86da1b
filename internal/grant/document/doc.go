// Package document reads the YAML documents of package grant, and an operator's policy file.
//
// They are YAML 1.2 in its core schema: yes and no are strings, there are no timestamps and merge keys. Bytes come from
// anybody with the right to start a container, so everything is bounded before it is read: bytes, nodes after aliases
// are expanded, depth.
package document
