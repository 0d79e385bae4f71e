"""What every part of a node uses: events, effects, jobs, tasks, waiting requests.

Owns one call of the node: what came in, what goes out, which requests wait. Imports no other
package of the node.
"""
