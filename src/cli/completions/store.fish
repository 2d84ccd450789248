
# Prints values from the store. The program takes only a moment and prints no errors; fish escapes
# the words.
function __fish_swarmletfs_store
    set -l word (commandline -ct)
    command swarmletfs __complete fish -- (commandline -opc) "$word" 2>/dev/null
end

