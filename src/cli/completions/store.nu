  # Prints values from the store. The program takes only a moment and prints no errors.
  def "nu-complete swarmletfs store" [context: string] {
    ^swarmletfs __complete nushell -- $context | complete | get stdout | lines
  }

