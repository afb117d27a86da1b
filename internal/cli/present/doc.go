// Package present shows objects in the forms that people know from other command lines: rows by a
// template, filters, and the documents of inspect. It asks nobody: all of it is made of what the
// agent has answered.
package present
